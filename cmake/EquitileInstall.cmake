# `cmake --install` gives a package in components, each of which find_package(equitile COMPONENTS …) and --component know:
#   kernel   equitile::kernel: attention, linear layers, masks; needs fmt and Highway
#   engine   equitile::equitile: plans, ranks, models, videos; and the command
#   mpi      equitile::mpi: ranks on several machines, where an MPI was found
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/equitile)

function(equitile_install_component name target)
  install(TARGETS ${target} EXPORT equitile_${name} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${name})
  install(EXPORT equitile_${name} NAMESPACE equitile:: DESTINATION ${package_folder} COMPONENT ${name})
endfunction()

# docs/library.md says which of the headers are for others; the rest comes along because those include it.
function(equitile_install_headers component folder)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/equitile/${folder}" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/equitile COMPONENT ${component}
          FILES_MATCHING PATTERN "*.h" PATTERN "*-inl.h" EXCLUDE PATTERN "*_testing.h" EXCLUDE PATTERN libav.h EXCLUDE
          PATTERN mpi EXCLUDE)
endfunction()

equitile_install_component(kernel equitile_kernel)
equitile_install_component(engine equitile)
foreach(room ${EQUITILE_ROOMS})
  set(component engine)
  if(room IN_LIST EQUITILE_KERNEL_ROOMS)
    set(component kernel)
  endif()
  equitile_install_headers(${component} ${room})
endforeach()
if(TARGET equitile_mpi)
  equitile_install_component(mpi equitile_mpi)
  install(FILES "${PROJECT_SOURCE_DIR}/equitile/comm/mpi/launch.h" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/equitile/comm/mpi COMPONENT mpi)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/equitileConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/equitileConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/equitileConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/equitileConfig.cmake ${PROJECT_BINARY_DIR}/equitileConfigVersion.cmake
        DESTINATION ${package_folder} COMPONENT kernel)

install(TARGETS equitile_app RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT engine)
# The model that `equitile generate` uses when none is named.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/wan-mini DESTINATION ${CMAKE_INSTALL_DATADIR}/equitile/models COMPONENT engine
        PATTERN training EXCLUDE)
