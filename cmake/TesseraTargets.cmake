# Flags, the precompiled header, and the few functions that make targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
# One -fPIC for libraries and programs, so that all share one precompiled header.
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
find_package(Threads REQUIRED)

add_library(tessera_flags INTERFACE)
target_compile_options(tessera_flags INTERFACE -fPIC -Wall -Wextra -Wpedantic
  $<$<BOOL:${TESSERA_WERROR}>:-Werror>)
target_include_directories(tessera_flags INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)

# All that includes torch headers shares this precompiled header.
add_library(tessera_pch OBJECT "${PROJECT_SOURCE_DIR}/cmake/pch.cpp")
target_precompile_headers(tessera_pch PRIVATE "${PROJECT_SOURCE_DIR}/cmake/pch.h")
target_link_libraries(tessera_pch PRIVATE tessera_flags tessera_torch Threads::Threads)

function(tessera_use_torch target)
  target_link_libraries(${target} PRIVATE tessera_flags)
  target_precompile_headers(${target} REUSE_FROM tessera_pch)
endfunction()

function(tessera_add_library)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tessera/*/*.cpp")
  list(FILTER sources EXCLUDE REGEX "_(no_)?cuda\\.cpp$|_nccl\\.cpp$|comm/gloo_")
  add_library(tessera ${sources})
  add_library(tessera::tessera ALIAS tessera)
  if(TESSERA_CUDA)
    file(GLOB optional CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tessera/*/*_cuda.cpp")
    list(FILTER optional EXCLUDE REGEX "_no_cuda\\.cpp$")
  else()
    file(GLOB optional CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tessera/*/*_no_cuda.cpp")
  endif()
  target_sources(tessera PRIVATE ${optional})
  target_link_libraries(tessera PUBLIC tessera_torch Threads::Threads)
  tessera_use_torch(tessera)
  # The only files that see the stand-in Gloo headers, so not the shared header.
  file(GLOB gloo CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tessera/comm/gloo_*.cpp")
  if(gloo)
    add_library(tessera_gloo OBJECT ${gloo})
    target_link_libraries(tessera_gloo PRIVATE tessera_flags tessera_torch)
    target_include_directories(tessera_gloo PRIVATE
      "${PROJECT_SOURCE_DIR}/cmake/gloo_headers")
    target_sources(tessera PRIVATE $<TARGET_OBJECTS:tessera_gloo>)
  endif()
endfunction()

# tessera_add_program(NAME SOURCES...): a program in bin/.
function(tessera_add_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE tessera)
  tessera_use_torch(${name})
endfunction()

# tessera_add_test(NAME SOURCES...): a GoogleTest binary; `torch_free` targets
# use tessera_add_plain_test instead.
function(tessera_add_test name)
  tessera_add_program(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600)
endfunction()

# A test of pure files: links neither torch nor tessera, compiles in a second.
function(tessera_add_plain_test name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE tessera_flags GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600)
endfunction()
