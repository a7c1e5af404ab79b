# `cmake --install` gives a package: headers, the library, the command, and what find_package(equitile) needs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS equitile EXPORT equitileTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS equitile_app RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/equitile/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/equitile
        FILES_MATCHING PATTERN "*.h" PATTERN "*-inl.h" EXCLUDE PATTERN "*_testing.h" EXCLUDE)
install(EXPORT equitileTargets NAMESPACE equitile:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/equitile)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/equitileConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/equitileConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/equitile)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/equitileConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/equitileConfig.cmake ${PROJECT_BINARY_DIR}/equitileConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/equitile)
# The model that `equitile generate` uses when none is named.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/wan-mini DESTINATION ${CMAKE_INSTALL_DATADIR}/equitile/models)
