# Writes OUTPUT with the commit of SOURCE; leaves it alone when nothing changed.
#   cmake -DSOURCE=<dir> -DOUTPUT=<file> -P git_commit.cmake
set(commit "")
execute_process(COMMAND git describe --always --dirty=+ --abbrev=12 --exclude=*
                WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit ERROR_QUIET
                OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed OR commit STREQUAL "")
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "inline constexpr char kTandemGitCommit[] = \"${commit}\";\n")
