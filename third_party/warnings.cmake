# Flags of our own code. -ffp-contract=off: a*b+c must not become an fma unless the source says so, or the CPU and CUDA
# backends would differ in the last bit. x86-64-v3 (AVX2, FMA, F16C) is the baseline; never -march=native.
# -Wno-restrict: GCC 12 warns falsely in std::string's operator+ (GCC bug 105651).
add_library(octet_flags INTERFACE)
target_compile_options(octet_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> -Werror -march=x86-64-v3 -ffp-contract=off>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-fno-math-errno -fno-trapping-math>)
if(OCTET_SANITIZE)
  target_compile_options(octet_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${OCTET_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(octet_flags INTERFACE -fsanitize=${OCTET_SANITIZE})
endif()
if(OCTET_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    message(FATAL_ERROR "OCTET_FUZZ=ON needs Clang, this is ${CMAKE_CXX_COMPILER_ID}; use cmake --preset fuzz")
  endif()
  # fuzzer-no-link: coverage counters in the libraries; the targets themselves link the driver.
  target_compile_options(octet_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all
    -fsanitize-ignorelist=${CMAKE_SOURCE_DIR}/tests/fuzz/ubsan_ignore.txt)
  target_compile_definitions(octet_flags INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(octet_flags INTERFACE -fsanitize=address,undefined)
endif()
if(OCTET_PORTABLE)
  target_link_options(octet_flags INTERFACE -static-libstdc++ -static-libgcc)
endif()
