# CUDA: whether there is a compiler, for which GPUs, and warproll_cuda_library().
if(WARPROLL_CUDA STREQUAL "OFF")
  set(WARPROLL_HAS_CUDA OFF)
else()
  include(CheckLanguage)
  # Before the language: the compiler's check would take an architecture that CUDA 13 has dropped.
  set(CMAKE_CUDA_ARCHITECTURES 90a-real 100a-real CACHE STRING "Hopper and Blackwell data centre GPUs")
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(WARPROLL_HAS_CUDA ON)
  elseif(WARPROLL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "WARPROLL_CUDA=ON, but no nvcc was found; put it on PATH or set CUDACXX")
  else()
    set(WARPROLL_HAS_CUDA OFF)
  endif()
endif()
message(STATUS "warproll: CUDA ${WARPROLL_HAS_CUDA}, OpenMP ${WARPROLL_OPENMP}, "
               "sanitize '${WARPROLL_SANITIZE}', ${CMAKE_BUILD_TYPE}")
if(NOT WARPROLL_HAS_CUDA)
  return()
endif()

if(WARPROLL_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# CMake 3.25 does not know nvcc with C++20: what it calls 17 is 20.
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA17_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA17_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo")

# warproll_cuda_library(name SOURCES files.. [LINK libs..]): .cu and .cpp files that use CUDA.
function(warproll_cuda_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra,-Werror>"
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror>")
  target_link_libraries(${name} PUBLIC CUDA::cudart_static ${ARG_LINK})
endfunction()
