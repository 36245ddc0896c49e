# Installing: bin/warproll and the shared libraries it needs, found from wherever the folder lies
# ($ORIGIN). Left to the machine: glibc, and what belongs to a GPU's driver (libcuda, NCCL).
# RPATH rather than RUNPATH, so that it counts for the libraries' own needs too.
set_target_properties(warproll PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
target_link_options(warproll PRIVATE -Wl,--disable-new-dtags)
set(WARPROLL_OF_THE_MACHINE "^(ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libcuda|libnccl)[-.]")
install(TARGETS warproll RUNTIME_DEPENDENCY_SET warproll_libraries RUNTIME DESTINATION bin)
install(RUNTIME_DEPENDENCY_SET warproll_libraries
        PRE_EXCLUDE_REGEXES "${WARPROLL_OF_THE_MACHINE}" LIBRARY DESTINATION lib)
install(DIRECTORY "${CMAKE_SOURCE_DIR}/configs/" DESTINATION configs)
install(FILES "${CMAKE_SOURCE_DIR}/README.md" DESTINATION .)
