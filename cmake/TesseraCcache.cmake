# Compiles through ccache if it is there and nothing else was asked for. Paths
# below this folder are made relative, so that objects and the precompiled
# header are found again in another clone.
find_program(TESSERA_CCACHE ccache)
if(PROJECT_IS_TOP_LEVEL AND TESSERA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
    "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}"
    CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_NOHASHDIR=1
    "${TESSERA_CCACHE}")
endif()
