/* floor.c: the least any launcher can do: fork and exec N copies of a program, wait for all.
 *   floor N PROGRAM [ARGS...] */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: floor N PROGRAM [ARGS...]\n");
        return 2;
    }
    for (int i = 0, n = atoi(argv[1]); i < n; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            execvp(argv[2], argv + 2);
            _exit(127);
        }
        if (pid < 0) {
            perror("fork");
            return 1;
        }
    }
    int status, worst = 0;
    while (wait(&status) > 0) {
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        worst = code > worst ? code : worst;
    }
    return worst;
}
