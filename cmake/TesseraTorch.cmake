# Finds LibTorch 2.11 and makes imported targets of our own from it: the wheel's
# CMake files demand a CUDA toolkit even for a CPU build. Our build uses this
# file, and so does find_package(Tessera), which finds LibTorch anew.
#
# Where it looks, in this order, as CMake variables and then in the environment:
# TESSERA_TORCH_ROOT (the folder that holds include/ and lib/), Torch_DIR, the
# Python named by TESSERA_PYTHON, python3.
#
# What it leaves: tessera::torch, TESSERA_TORCH_ROOT, TESSERA_TORCH_VERSION; or
# TESSERA_TORCH_PROBLEM, one sentence, when it finds nothing fit.

# The folder with include/ and lib/ in `result`, empty if there is none.
function(_tessera_locate_torch result)
  set(${result} "" PARENT_SCOPE)
  foreach(root "${TESSERA_TORCH_ROOT}" "$ENV{TESSERA_TORCH_ROOT}")
    if(root)
      set(${result} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  foreach(config "${Torch_DIR}" "$ENV{Torch_DIR}")
    if(config)
      cmake_path(SET root NORMALIZE "${config}/../../..")
      string(REGEX REPLACE "/$" "" root "${root}")
      set(${result} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  foreach(python "${TESSERA_PYTHON}" "$ENV{TESSERA_PYTHON}" python3)
    if(python)
      execute_process(
        COMMAND "${python}" -c
          "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
        OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE
        ERROR_QUIET RESULT_VARIABLE status)
      if(status EQUAL 0)
        set(${result} "${root}" PARENT_SCOPE)
      endif()
      return()
    endif()
  endforeach()
endfunction()

# MAJOR.MINOR.PATCH of the LibTorch in `root`.
function(_tessera_read_torch_version root result)
  file(STRINGS "${root}/include/torch/headeronly/version.h" lines
    REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*"
    "\\1.\\2.\\3" version "${lines}")
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# One sentence in `result` if the LibTorch in `root` cannot serve.
function(_tessera_judge_torch root version cuda result)
  set(problem "")
  set(c10d "${root}/include/torch/csrc/distributed/c10d")
  if(NOT version MATCHES "^2\\.11\\.")
    set(problem "Tessera needs LibTorch 2.11, but ${root} holds ${version}.")
  elseif(NOT EXISTS "${c10d}/ProcessGroupGloo.hpp")
    set(problem "Tessera needs a LibTorch that was built with Gloo, but ${root} was built without.")
  elseif(cuda AND NOT (EXISTS "${root}/lib/libtorch_cuda.so"
      AND EXISTS "${c10d}/ProcessGroupNCCL.hpp"))
    set(problem "TESSERA_CUDA=ON needs a LibTorch that was built with CUDA and NCCL, but ${root} was built without.")
  endif()
  set(${result} "${problem}" PARENT_SCOPE)
endfunction()

# Links tessera::torch to a shared library, as tessera::libNAME.
function(_tessera_link_library name path)
  if(NOT TARGET tessera::lib${name})
    add_library(tessera::lib${name} SHARED IMPORTED GLOBAL)
    set_target_properties(tessera::lib${name} PROPERTIES
      IMPORTED_LOCATION "${path}")
  endif()
  set_property(TARGET tessera::torch APPEND PROPERTY
    INTERFACE_LINK_LIBRARIES tessera::lib${name})
endfunction()

function(_tessera_add_torch_target)
  add_library(tessera::torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(tessera::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES
      "${TESSERA_TORCH_ROOT}/include;${TESSERA_TORCH_ROOT}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS
      "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE"
    # CUDA's operators register themselves when libtorch_cuda is loaded, so it
    # must stay although nothing refers to it. Undefined symbols of LibTorch's
    # own libraries are found by their RPATH when the program starts.
    INTERFACE_LINK_OPTIONS
      "LINKER:--no-as-needed;LINKER:--allow-shlib-undefined;LINKER:--enable-new-dtags")
  foreach(library torch_cpu c10)
    _tessera_link_library(${library} "${TESSERA_TORCH_ROOT}/lib/lib${library}.so")
  endforeach()
endfunction()

# Headers of CUDA and NCCL, and the libraries with CUDA's operators. Leaves a
# sentence in `result` if the headers are missing.
function(_tessera_add_cuda result)
  set(wheels "${TESSERA_TORCH_ROOT}/../nvidia")
  find_path(TESSERA_NCCL_INCLUDE nccl.h HINTS "${wheels}/nccl/include")
  find_path(TESSERA_CUDA_INCLUDE cuda_runtime_api.h
    HINTS "$ENV{CUDA_HOME}/include" /usr/local/cuda/include
      "${wheels}/cu13/include")
  find_library(TESSERA_CUDART NAMES libcudart.so.13
    HINTS "${wheels}/cu13/lib" "$ENV{CUDA_HOME}/lib64" /usr/local/cuda/lib64)
  find_library(TESSERA_CUBLASLT NAMES libcublasLt.so.13
    HINTS "${wheels}/cu13/lib" "$ENV{CUDA_HOME}/lib64" /usr/local/cuda/lib64)
  foreach(part NCCL_INCLUDE CUDA_INCLUDE CUDART CUBLASLT)
    if(NOT TESSERA_${part})
      set(${result}
        "TESSERA_CUDA=ON finds no ${part}; set TESSERA_${part}." PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set_property(TARGET tessera::torch APPEND PROPERTY
    INTERFACE_INCLUDE_DIRECTORIES
      "${TESSERA_NCCL_INCLUDE}" "${TESSERA_CUDA_INCLUDE}")
  set_property(TARGET tessera::torch APPEND PROPERTY
    INTERFACE_COMPILE_DEFINITIONS USE_C10D_NCCL)
  foreach(library torch torch_cuda c10_cuda)
    _tessera_link_library(${library} "${TESSERA_TORCH_ROOT}/lib/lib${library}.so")
  endforeach()
  _tessera_link_library(cudart "${TESSERA_CUDART}")
  _tessera_link_library(cublasLt "${TESSERA_CUBLASLT}")
endfunction()

set(TESSERA_TORCH_PROBLEM "")
_tessera_locate_torch(TESSERA_TORCH_ROOT)
if(NOT EXISTS "${TESSERA_TORCH_ROOT}/include/torch/headeronly/version.h")
  set(TESSERA_TORCH_PROBLEM
    "Tessera: no LibTorch 2.11 found; run scripts/build, or set Torch_DIR, TESSERA_TORCH_ROOT or TESSERA_PYTHON (a Python that imports torch 2.11).")
else()
  _tessera_read_torch_version("${TESSERA_TORCH_ROOT}" TESSERA_TORCH_VERSION)
  _tessera_judge_torch("${TESSERA_TORCH_ROOT}" "${TESSERA_TORCH_VERSION}"
    "${TESSERA_CUDA}" TESSERA_TORCH_PROBLEM)
endif()
if(NOT TESSERA_TORCH_PROBLEM AND NOT TARGET tessera::torch)
  _tessera_add_torch_target()
  if(TESSERA_CUDA)
    _tessera_add_cuda(TESSERA_TORCH_PROBLEM)
  endif()
endif()
