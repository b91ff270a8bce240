# Uses ccache when it is installed; a build without it is only slower.
find_program(OCTET_CCACHE ccache)
if(OCTET_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${OCTET_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${OCTET_CCACHE})
endif()
