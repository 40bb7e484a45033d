# Writes the commit of SOURCE to OUTPUT, unless it is already there. The environment variable TANDEM_GIT_COMMIT has
# precedence, because an image is built from a tree without .git.
#   cmake -DSOURCE=<dir> -DOUTPUT=<file> -P git_commit.cmake
set(commit "$ENV{TANDEM_GIT_COMMIT}")
set(failed FALSE)
if(commit STREQUAL "")
  execute_process(COMMAND git describe --always --dirty=+ --abbrev=12 --exclude=*
                  WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
endif()
if(failed OR commit STREQUAL "")
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "inline constexpr char kTandemGitCommit[] = \"${commit}\";\n")
