#include "launcher/options/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/mem.h"

#define FILE_LIMIT (16u << 20) /* bytes */

char *text_read(int fd, const char *name, struct err *e)
{
    size_t len = 0, cap = 4096;
    char *text = xmalloc(cap);
    ssize_t n;
    while ((n = read(fd, text + len, cap - len - 1)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 || len + (size_t)n > FILE_LIMIT) {
            free(text);
            if (n < 0)
                err_sys(e, errno, "%s", name);
            else
                err_set(e, -EINVAL, "%s is larger than %u MB", name, FILE_LIMIT >> 20);
            return NULL;
        }
        len += (size_t)n;
        if (cap - len < 2)
            text = xrealloc(text, cap *= 2);
    }
    text[len] = '\0';
    if (strlen(text) == len)
        return text;
    err_set(e, -EINVAL, "%s is not a text: there is a NUL byte in it", name);
    free(text);
    return NULL;
}

char *text_file_read(const char *path, struct err *e)
{
    _cleanup_fd_ int fd =
        strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        return text_read(fd, path, e);
    err_sys(e, errno, "%s", *path ? path : "an empty file name");
    return NULL;
}
