# Uses ccache when it is installed; a build without it is only slower.
find_program(OCTET_CCACHE ccache)
if(OCTET_CCACHE)
  # The sloppiness is what ccache needs to cache sources that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${OCTET_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${OCTET_CCACHE})
endif()
