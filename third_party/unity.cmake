# octet_unity(TARGET FILES): OCTET_UNITY compiles the sources of a target together, FILES at a time. Most of the compiler's time goes into the
# headers of nlohmann/json, fmt and GoogleTest and what they instantiate, once a translation unit. Names in anonymous namespaces of a
# folder may therefore overload each other, not clash. The presets asan and tsan compile each file by itself.
function(octet_unity target files)
  if(OCTET_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE BATCH UNITY_BUILD_BATCH_SIZE ${files})
  endif()
endfunction()
