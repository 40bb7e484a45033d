// Where Python and the package tandem_rl are, for programs that start functions of users in Python.
#pragma once

#include <cstdint>
#include <string>

#include "common/process/line_process.h"

namespace tandem {

// The folder that goes before PYTHONPATH so that tandem_rl is found without an installation:
// python/ of the checkout that this program was built in, or share/tandem/python of the prefix that
// it was installed into (make install, the image). Empty where neither is there: then the package
// must be installed for the interpreter. Thread-safe.
std::string FindPythonPackageFolder();

// $TANDEM_PYTHON, which `tandem` of the wheel sets to the interpreter that it is installed for; else
// the interpreter of the environment that is active (VIRTUAL_ENV); else "python3", which is looked
// up in PATH.
std::string DefaultPython();

// `folder` before the PYTHONPATH of this process: "PYTHONPATH=folder:...".
std::string PythonPathVariable(const std::string& folder);

// A module of tandem_rl as a program apart (LineProgram::is_apart), such as
// "tandem_rl.rewards.worker". `interpreter`: empty for DefaultPython. `memory_limit_mib`: 0 for
// none.
LineProgram PythonWorkerProgram(const std::string& who, const std::string& module,
                                const std::string& interpreter, int64_t memory_limit_mib);

// What to do where a program of PythonWorkerProgram ends before its first line: a sentence, in
// brackets, that names the command.
std::string PythonWorkerAdvice(const LineProcess& process);

}  // namespace tandem
