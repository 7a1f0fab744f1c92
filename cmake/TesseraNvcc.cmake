# Finds nvcc for the kernels where it is not on the PATH: CMAKE_CUDA_COMPILER,
# CUDACXX, then CUDA_HOME and the usual folder.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(TESSERA_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
  if(NOT TESSERA_NVCC)
    message(FATAL_ERROR "TESSERA_CUDA=ON finds no nvcc, which compiles the kernels of tessera/kernels; install CUDA 13's, or set CMAKE_CUDA_COMPILER.")
  endif()
  set(CMAKE_CUDA_COMPILER "${TESSERA_NVCC}")
endif()
# The kernels choose theirs; this only keeps CMake from guessing.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
endif()
