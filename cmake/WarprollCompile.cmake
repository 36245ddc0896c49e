# Compiler flags, sanitizers, ccache, and warproll_library(): one static library per folder.
find_program(WARPROLL_CCACHE ccache)
if(WARPROLL_CCACHE)
  # Relative paths, so that build directories and clones share cache entries.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 ${WARPROLL_CCACHE})
endif()

set(CMAKE_CXX_FLAGS_RELEASE "-O2")  # asserts stay on: no -DNDEBUG
add_library(warproll_flags INTERFACE)
target_include_directories(warproll_flags INTERFACE "${CMAKE_SOURCE_DIR}"
                           "${CMAKE_BINARY_DIR}/generated")
# -ffp-contract=off: the same float bits on every machine, with or without FMA.
target_compile_options(warproll_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Werror;-ffp-contract=off>")
target_compile_definitions(warproll_flags INTERFACE WARPROLL_VERSION="${PROJECT_VERSION}")

if(WARPROLL_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(WARPROLL_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread)
  add_link_options(-fsanitize=thread)
elseif(WARPROLL_SANITIZE)
  message(FATAL_ERROR "WARPROLL_SANITIZE is '${WARPROLL_SANITIZE}', wanted empty, address or thread")
endif()

# warproll_library(name [LINK libs...]): every .cpp of the current folder (not below it) as one
# static library; an INTERFACE library while the folder has none.
function(warproll_library name)
  cmake_parse_arguments(ARG "" "" "LINK;EXCLUDE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  foreach(excluded IN LISTS ARG_EXCLUDE)
    list(REMOVE_ITEM sources "${CMAKE_CURRENT_SOURCE_DIR}/${excluded}")
  endforeach()
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC warproll_flags ${ARG_LINK})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE warproll_flags ${ARG_LINK})
  endif()
endfunction()
