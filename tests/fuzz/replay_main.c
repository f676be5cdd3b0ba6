/* Runs a fuzz target over the files of a corpus without libFuzzer, so that every compiler and
 * `make test` can: fuzz_x DIRECTORY-OR-FILE... prints "N inputs replayed". */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static long replayed;

static void fail(const char *path)
{
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    exit(1);
}

static void replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) < 0)
        fail(path);
    size_t size = (size_t)st.st_size;
    uint8_t *data = malloc(size ? size : 1); /* exactly so large: reading past it is seen */
    if (!data || fread(data, 1, size, f) != size)
        fail(path);
    fclose(f);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    replayed++;
}

static void replay_directory(const char *path, DIR *d)
{
    struct dirent *entry;
    while ((entry = readdir(d))) {
        char name[PATH_MAX];
        if (entry->d_name[0] == '.')
            continue;
        if (snprintf(name, sizeof(name), "%s/%s", path, entry->d_name) >= (int)sizeof(name)) {
            errno = ENAMETOOLONG;
            fail(path);
        }
        replay_file(name);
    }
    closedir(d);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (d)
            replay_directory(argv[i], d);
        else if (errno == ENOTDIR)
            replay_file(argv[i]);
        else
            fail(argv[i]);
    }
    printf("%ld inputs replayed\n", replayed);
    return replayed ? 0 : 1;
}
