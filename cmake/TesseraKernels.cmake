# The CUDA kernels of tessera/kernels, in builds with TESSERA_CUDA: .cu files that
# include no torch header.
#
# TESSERA_CUDA_ARCHITECTURES says for which GPUs (as CMAKE_CUDA_ARCHITECTURES):
# 80 is A100, 90 is H100 and H200; "90" without "-real" keeps the code from which
# newer GPUs compile their own.
function(tessera_add_kernels target)
  if(NOT TESSERA_CUDA)
    return()
  endif()
  set(TESSERA_CUDA_ARCHITECTURES "80-real;90" CACHE STRING
    "GPUs to compile kernels for")
  file(GLOB sources CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/tessera/kernels/*.cu")
  add_library(tessera_kernels OBJECT ${sources})
  set_target_properties(tessera_kernels PROPERTIES
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
    CUDA_ARCHITECTURES "${TESSERA_CUDA_ARCHITECTURES}"
    CUDA_RUNTIME_LIBRARY None)
  target_compile_options(tessera_kernels PRIVATE
    -Xcompiler=-fPIC,-Wall,-Wextra
    $<$<BOOL:${TESSERA_WERROR}>:-Werror=all-warnings>)
  target_include_directories(tessera_kernels PRIVATE "${PROJECT_SOURCE_DIR}")
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:tessera_kernels>)
endfunction()
