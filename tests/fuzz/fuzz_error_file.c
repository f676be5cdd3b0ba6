/* Any bytes as a worker's error file: parsed or kept as text, always bounded and terminated. */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "agent/report/error_file.h"
#include "core/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error_file f;
    char shown[4 * sizeof(f.message) + 8];
    memset(&f, 0xa5, sizeof(f));
    int rc = error_file_parse((const char *)data, size, &f);
    assert(rc == 0 || rc == -EINVAL || (rc == -ENOENT && size == 0));
    assert(memchr(f.message, '\0', sizeof(f.message)));
    assert(f.timestamp >= 0);
    if (rc == -EINVAL && size && data[0])
        assert(f.message[0] == (char)data[0]);
    size_t n = log_escape(shown, sizeof(shown), f.message, strlen(f.message), 1);
    assert(n == strlen(shown));
    return 0;
}
