# Which files need the precompiled header: every file that is compiled with it
# pays some 4 s for inline functions of LibTorch, though it uses none of them.

# Whether `file` includes, directly or through files of this project, a header of
# LibTorch; in `result`. Each file is read once per configuration.
function(_tessera_includes_torch file result)
  string(MAKE_C_IDENTIFIER "${file}" key)
  get_property(known GLOBAL PROPERTY tessera_includes_torch_${key})
  if(NOT "${known}" STREQUAL "")
    set(${result} ${known} PARENT_SCOPE)
    return()
  endif()
  # Includes that lead back here find "no": the first visit decides.
  set_property(GLOBAL PROPERTY tessera_includes_torch_${key} NO)
  set(found NO)
  file(STRINGS "${file}" lines REGEX "^#include")
  foreach(line IN LISTS lines)
    if(line MATCHES "[<\"](torch|ATen|c10|caffe2)/")
      set(found YES)
    elseif(line MATCHES "\"([^\"]+)\"")
      set(header "${PROJECT_SOURCE_DIR}/${CMAKE_MATCH_1}")
      if(EXISTS "${header}")
        _tessera_includes_torch("${header}" found)
      endif()
    endif()
    if(found)
      break()
    endif()
  endforeach()
  set_property(GLOBAL PROPERTY tessera_includes_torch_${key} ${found})
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# Takes the precompiled header from the files of `target` that include nothing of
# LibTorch, and keeps them out of unity builds, where they would pay for their
# neighbours' headers. A file that begins to include it is seen at the next
# configuration; until then it compiles without the header, only slower.
function(tessera_skip_header_where_no_torch target)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    if(source MATCHES "\\.cpp$")
      cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE path)
      if(EXISTS "${path}")
        _tessera_includes_torch("${path}" with_torch)
        if(NOT with_torch)
          set_source_files_properties("${source}" PROPERTIES
            SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
        endif()
      endif()
    endif()
  endforeach()
endfunction()
