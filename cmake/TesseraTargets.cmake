# Flags, the precompiled header, and the few functions that make targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# One -fPIC for libraries and programs, so that all share one precompiled header.
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
# A build folder finds its own library wherever it is carried to.
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
set(CMAKE_INSTALL_RPATH
  "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${TESSERA_TORCH_ROOT}/lib")
find_package(Threads REQUIRED)

add_library(tessera_flags INTERFACE)
# GCC 12 sees overlapping or endless copies in "text" + string wherever it inlines
# much (its bug 105651).
set(_tessera_false_warnings $<AND:$<CONFIG:Release,RelWithDebInfo>,$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>)
target_compile_options(tessera_flags INTERFACE -fPIC -Wall -Wextra -Wpedantic
  $<$<BOOL:${TESSERA_WERROR}>:-Werror>
  "$<${_tessera_false_warnings}:-Wno-restrict;-Wno-stringop-overflow>")
target_include_directories(tessera_flags INTERFACE "${PROJECT_SOURCE_DIR}")

# Files that include torch headers share a precompiled header: those of the
# library and the program a small one, all others one with everything. Its name
# in angle brackets keeps the path of the clone out of it, so that ccache knows it
# again in another clone.
function(_tessera_add_precompiled_header name header)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/cmake/pch.cpp")
  target_precompile_headers(${name} PRIVATE <${header}>)
  target_link_libraries(${name} PRIVATE
    tessera_flags tessera::torch Threads::Threads)
endfunction()
_tessera_add_precompiled_header(tessera_library_pch cmake/library_pch.h)
_tessera_add_precompiled_header(tessera_pch cmake/pch.h)

# tessera_use_torch(TARGET [PCH]): PCH is tessera_library_pch or tessera_pch.
function(tessera_use_torch target)
  set(pch ${ARGN} tessera_pch)
  list(GET pch 0 pch)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:tessera_flags>)
  target_precompile_headers(${target} REUSE_FROM ${pch})
  tessera_skip_header_where_no_torch(${target})
endfunction()

# The sources of the library in `result`: of each pair x_cuda.cpp and
# x_no_cuda.cpp one, and x_nccl.cpp only for CUDA.
function(_tessera_list_sources result)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tessera/*/*.cpp")
  set(without_cuda ${sources})
  list(FILTER without_cuda INCLUDE REGEX "_no_cuda\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_no_cuda\\.cpp$|/comm/gloo_")
  if(NOT TESSERA_CUDA)
    list(FILTER sources EXCLUDE REGEX "_(cuda|nccl)\\.cpp$")
    list(APPEND sources ${without_cuda})
  endif()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# The only files that see the stand-in Gloo headers, so not the shared header.
function(_tessera_add_gloo)
  file(GLOB sources CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/tessera/comm/gloo_*.cpp")
  if(sources)
    add_library(tessera_gloo OBJECT ${sources})
    target_link_libraries(tessera_gloo PRIVATE tessera_flags tessera::torch)
    target_include_directories(tessera_gloo PRIVATE
      "${PROJECT_SOURCE_DIR}/cmake/gloo_headers")
    target_sources(tessera PRIVATE $<TARGET_OBJECTS:tessera_gloo>)
  endif()
endfunction()

# Compiles the files of a folder that include torch headers as one, six at a
# time: LibTorch's templates are made once for all of them. Names of unnamed
# namespaces must then differ within a folder.
function(_tessera_unite target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  target_compile_options(${target} PRIVATE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)  # it takes them for headers
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_source_file_property(apart "${source}" SKIP_UNITY_BUILD_INCLUSION)
    if(apart OR NOT source MATCHES "\\.cpp$" OR source MATCHES "_(cuda|nccl)\\.cpp$")
      continue()
    endif()
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(GET folder FILENAME folder)
    math(EXPR count_${folder} "${count_${folder}} + 1")
    math(EXPR group "(${count_${folder}} - 1) / 6")
    set_source_files_properties("${source}" PROPERTIES
      UNITY_GROUP "${folder}_${group}")
  endforeach()
endfunction()

function(tessera_add_library)
  _tessera_list_sources(sources)
  add_library(tessera ${sources})
  add_library(tessera::tessera ALIAS tessera)
  # No define of its own: shared and static libraries are the same objects.
  set_target_properties(tessera PROPERTIES DEFINE_SYMBOL ""
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_compile_features(tessera PUBLIC cxx_std_20)
  target_include_directories(tessera PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(tessera PUBLIC tessera::torch Threads::Threads)
  tessera_use_torch(tessera tessera_library_pch)
  if(TESSERA_UNITY)
    _tessera_unite(tessera)
  endif()
  # Headers alone, in .cpp files alone: users of the library do not need it.
  find_package(nlohmann_json REQUIRED)
  target_link_libraries(tessera PRIVATE
    $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
  target_link_options(tessera PRIVATE LINKER:-z,defs)
  _tessera_add_gloo()
endfunction()

# tessera_add_program(NAME [PCH name] SOURCES...): a program in bin/.
function(tessera_add_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" PCH "")
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE tessera)
  tessera_use_torch(${name} ${arg_PCH})
endfunction()

# tessera_add_test(NAME SOURCES...): a GoogleTest binary; `torch_free` targets
# use tessera_add_plain_test instead.
function(tessera_add_test name)
  tessera_add_program(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE GTest::gtest GTest::gtest_main)
  tessera_register_test(${name})
endfunction()

# A test of pure files: links neither torch nor tessera, compiles in a second.
function(tessera_add_plain_test name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE tessera_flags GTest::gtest GTest::gtest_main)
  tessera_register_test(${name})
  set_property(TEST ${name} PROPERTY LABELS torch_free)
endfunction()

# The Python that imports torch, the one of the same wheel, in `result`; empty
# when there is none.
function(tessera_find_torch_python result)
  set(python "${TESSERA_PYTHON}")
  if(NOT python)
    cmake_path(SET python NORMALIZE "${TESSERA_TORCH_ROOT}/../../../../bin/python")
  endif()
  if(NOT EXISTS "${python}")
    set(python "")
  endif()
  set(${result} "${python}" PARENT_SCOPE)
endfunction()

# Runs a test binary under ctest, with a deadline. TESSERA_PYTHON names, in its
# environment, the Python that imports torch.
function(tessera_register_test name)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 1800)
  tessera_find_torch_python(python)
  if(python)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT_MODIFICATION
      "TESSERA_PYTHON=set:${python}")
  endif()
endfunction()
