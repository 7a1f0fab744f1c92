# Finds LibTorch 2.11 and makes imported targets of our own from it: the wheel's
# CMake files demand a CUDA toolkit even for a CPU build.
#
# Where it looks, in this order: TESSERA_TORCH_ROOT (the folder that holds
# include/ and lib/), Torch_DIR, the Python named by TESSERA_PYTHON, python3.
set(TESSERA_TORCH_ROOT "" CACHE PATH "Folder with LibTorch's include/ and lib/")
if(NOT TESSERA_TORCH_ROOT AND Torch_DIR)
  get_filename_component(TESSERA_TORCH_ROOT "${Torch_DIR}/../../.." ABSOLUTE)
endif()
if(NOT TESSERA_TORCH_ROOT)
  set(TESSERA_PYTHON "python3" CACHE STRING "A Python that imports torch 2.11")
  execute_process(
    COMMAND ${TESSERA_PYTHON} -c
      "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE TESSERA_TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET RESULT_VARIABLE result)
endif()
if(NOT EXISTS "${TESSERA_TORCH_ROOT}/include/torch/headeronly/version.h")
  message(FATAL_ERROR
    "Tessera: no LibTorch 2.11 found; run scripts/build, or set Torch_DIR, "
    "TESSERA_TORCH_ROOT or TESSERA_PYTHON (a Python that imports torch 2.11).")
endif()
file(STRINGS "${TESSERA_TORCH_ROOT}/include/torch/headeronly/version.h" lines
  REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*"
  "\\1.\\2.\\3" TESSERA_TORCH_VERSION "${lines}")
if(NOT TESSERA_TORCH_VERSION MATCHES "^2\\.11\\.")
  message(FATAL_ERROR "Tessera needs LibTorch 2.11, but "
    "${TESSERA_TORCH_ROOT} holds ${TESSERA_TORCH_VERSION}.")
endif()
if(NOT EXISTS
    "${TESSERA_TORCH_ROOT}/include/torch/csrc/distributed/c10d/ProcessGroupGloo.hpp")
  message(FATAL_ERROR "Tessera needs a LibTorch that was built with Gloo, but "
    "${TESSERA_TORCH_ROOT} was built without.")
endif()
message(STATUS "LibTorch ${TESSERA_TORCH_VERSION} in ${TESSERA_TORCH_ROOT}")

add_library(tessera_torch INTERFACE)
target_include_directories(tessera_torch SYSTEM INTERFACE
  "${TESSERA_TORCH_ROOT}/include"
  "${TESSERA_TORCH_ROOT}/include/torch/csrc/api/include")
target_compile_definitions(tessera_torch INTERFACE
  USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
target_link_libraries(tessera_torch INTERFACE
  "${TESSERA_TORCH_ROOT}/lib/libtorch_cpu.so" "${TESSERA_TORCH_ROOT}/lib/libc10.so")
target_link_options(tessera_torch INTERFACE
  "LINKER:--no-as-needed" "LINKER:--allow-shlib-undefined"
  "LINKER:-rpath,${TESSERA_TORCH_ROOT}/lib")
