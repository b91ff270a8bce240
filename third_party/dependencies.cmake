# System packages, found and version-checked. scripts/setup.sh installs them on Debian and Ubuntu.
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
if(OCTET_PORTABLE)
  # Debian ships fmt as a shared library and as headers, not as an archive: the header-only flavour it is.
  find_path(FMT_INCLUDE_DIR fmt/format.h REQUIRED)
  add_library(fmt::fmt INTERFACE IMPORTED)
  target_include_directories(fmt::fmt INTERFACE ${FMT_INCLUDE_DIR})
  target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY=1)
else()
  find_package(fmt 9.0 REQUIRED)
endif()
find_package(cxxopts 3.0 REQUIRED)

find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
file(STRINGS ${XXHASH_INCLUDE_DIR}/xxhash.h _xxh REGEX "#define XXH_VERSION_(MAJOR|MINOR) +[0-9]+")
string(REGEX MATCH "MAJOR +([0-9]+)" _ "${_xxh}")
set(_major ${CMAKE_MATCH_1})
string(REGEX MATCH "MINOR +([0-9]+)" _ "${_xxh}")
if("${_major}.${CMAKE_MATCH_1}" VERSION_LESS 0.8)
  message(FATAL_ERROR "xxHash 0.8 or newer is needed, found ${_major}.${CMAKE_MATCH_1} in ${XXHASH_INCLUDE_DIR}")
endif()
add_library(octet_xxhash INTERFACE)  # XXH_INLINE_ALL: header only
target_include_directories(octet_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})

# The BLAS is named: Debian's libblas.so may be the reference BLAS, 30 times slower. OpenBLAS' pthread flavour is chosen
# because its buffer allocator is safe under concurrent callers (the serial flavour is built without locking);
# cpu/blas.cpp pins it to one thread a call and tests that at start-up.
find_path(OPENBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES x86_64-linux-gnu/openblas-pthread openblas-pthread openblas REQUIRED)
find_library(OPENBLAS_LIBRARY NAMES openblas PATH_SUFFIXES openblas-pthread REQUIRED)
add_library(octet_blas INTERFACE)
target_include_directories(octet_blas SYSTEM INTERFACE ${OPENBLAS_INCLUDE_DIR})
get_filename_component(OPENBLAS_LIBRARY_DIR ${OPENBLAS_LIBRARY} DIRECTORY)
if(OCTET_PORTABLE)
  target_link_libraries(octet_blas INTERFACE ${OPENBLAS_LIBRARY_DIR}/libopenblas.a)
  foreach(_archive libgfortran.a libquadmath.a)  # OpenBLAS' LAPACK part is Fortran
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${_archive} OUTPUT_VARIABLE _path OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT IS_ABSOLUTE "${_path}")
      message(FATAL_ERROR "OCTET_PORTABLE=ON needs ${_archive} of this compiler; install Debian's package gfortran")
    endif()
    target_link_libraries(octet_blas INTERFACE ${_path})
  endforeach()
  target_link_libraries(octet_blas INTERFACE Threads::Threads)
else()
  target_link_libraries(octet_blas INTERFACE ${OPENBLAS_LIBRARY})
  target_link_options(octet_blas INTERFACE -Wl,-rpath,${OPENBLAS_LIBRARY_DIR})
endif()

# MPI, by its C interface (whose check needs the C language). Always a shared library: it belongs to the machine and its launcher, also with OCTET_PORTABLE.
enable_language(C)
find_package(MPI 3.1 REQUIRED COMPONENTS C)
add_library(octet_mpi INTERFACE)
target_include_directories(octet_mpi SYSTEM INTERFACE ${MPI_C_INCLUDE_DIRS})
target_compile_definitions(octet_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
target_link_libraries(octet_mpi INTERFACE MPI::MPI_C)
if(OCTET_HAVE_CUDA)
  include(nccl)
endif()

# Text: compressed inputs, Unicode, regular expressions, JSON lines, SentencePiece.
include(text_libraries)

if(OCTET_TESTS)
  find_package(GTest 1.12 REQUIRED)
  find_package(Boost 1.74 REQUIRED COMPONENTS context)  # fibers, for the kernels that run on the host (tests/simt)
  include(GoogleTest)
endif()
