#include "agent/report/pod_message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/base/fs.h"
#include "agent/report/report.h"

int pod_message_write(const struct report_input *in, struct err *e)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    if (!out)
        return err_sys(e, errno, "%s", in->job->pod_message);
    report_print(out, in, 0, 0);
    if (fclose(out) != 0) {
        free(text);
        return err_sys(e, ENOMEM, "%s", in->job->pod_message);
    }
    const char *from = text + strspn(text, "\n-"); /* without the rule above it */
    len -= (size_t)(from - text);
    if (len > POD_MESSAGE_MAX) { /* whole lines, if there are any */
        const char *nl = memrchr(from, '\n', POD_MESSAGE_MAX);
        len = nl ? (size_t)(nl - from) + 1 : POD_MESSAGE_MAX;
    }
    int rc = fs_replace_file_timed(in->job->pod_message, from, len, e);
    free(text);
    return rc;
}
