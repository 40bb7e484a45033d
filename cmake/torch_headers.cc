// CMake asks for a source in a target of precompiled headers (libtorch.cmake).
