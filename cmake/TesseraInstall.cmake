# Installs the headers, the library and the package that find_package(Tessera)
# reads. Programs install themselves where they are made (tessera_add_program).
include(CMakePackageConfigHelpers)

set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/Tessera")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/tessera"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(TARGETS tessera EXPORT TesseraTargets)
install(EXPORT TesseraTargets NAMESPACE tessera:: DESTINATION "${_package}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/TesseraConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/TesseraConfig.cmake" INSTALL_DESTINATION "${_package}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/TesseraConfig.cmake"
  "${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/TesseraTorch.cmake"
  DESTINATION "${_package}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
