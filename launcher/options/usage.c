#include "launcher/options/usage.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "core/mem.h"
#include "launcher/options/options.h"

static int usage_finish(FILE *out)
{
    return fflush(out) != 0 || ferror(out) ? -(errno ? errno : EIO) : 0;
}

/* Prints words from column `at` on, breaking lines before USAGE_COLUMNS; new lines begin with
 * `lead`, filled up with blanks to `indent`. Returns the column behind the last word. */
static size_t wrap(FILE *out, const char *text, size_t at, const char *lead, size_t indent)
{
    bool first = true;
    while (*text) {
        size_t n = strcspn(text, " ");
        if (!first && at + 1 + n >= USAGE_COLUMNS) {
            fprintf(out, "\n%s%*s", lead, (int)(indent - strlen(lead)), "");
            at = indent;
        } else if (!first) {
            fputc(' ', out);
            at++;
        }
        first = false;
        fwrite(text, 1, n, out);
        at += n;
        text += n;
        text += strspn(text, " ");
    }
    return at;
}

/* Writes the default as a sentence, or "". */
static const char *default_text(const struct opt *o, char *out, size_t cap)
{
    out[0] = '\0';
    if (o->def && o->kind != KIND_FLAG)
        snprintf(out, cap, " Default: %s.", o->def);
    return out;
}

/* ----------------------------------------------------------------------------------------- help */

#define HELP_INDENT  28
#define BRIEF_INDENT 35

/* Prints the name of an option with its value, padded to `indent`. */
static void option_name(FILE *out, const struct opt *o, int indent)
{
    int at =
        o->letter ? fprintf(out, "  -%c, %s", o->letter, o->name) : fprintf(out, "  %s", o->name);
    if (o->kind != KIND_FLAG)
        at += fprintf(out, " %s", o->values);
    if (at >= indent - 1 && indent == HELP_INDENT)
        at = fprintf(out, "\n") - 1;
    fprintf(out, "%*s", indent - at, "");
}

static const struct {
    const char *status, *meaning;
} exit_statuses[] = {
    {"0", "Every worker of the job exited with 0."},
    {"N", "Exit code of the worker that failed first, on any node."},
    {"128+N", "Signal N killed that worker, or stopped dlaunch."},
    {"1", "A node was lost, or the nodes did not meet in time."},
    {"2", "An option, a file or the environment is wrong; nothing was started."},
    {"124", "--timeout expired."},
    {"125", "dlaunch itself failed."},
    {"126", "The program cannot be executed."},
    {"127", "The program does not exist."},
};

static void usage_intro(FILE *out, const char *prog)
{
    fprintf(out,
            "Start the workers of a distributed job on this node, restart them after a\n"
            "failure on any node, and report what failed. Run the same command on all nodes.\n"
            "\n"
            "  %s --nproc_per_node 4 ./train           four workers on this node\n"
            "  %s -H n0:4,n1:4 ./train                 four on each of two nodes, by ssh\n"
            "  %s --nnodes 2 --node_rank 0 --master_addr n0 --nproc_per_node 4 ./train\n"
            "  %s --nnodes 2 --node_rank 1 --master_addr n0 --nproc_per_node 4 ./train\n",
            prog, prog, prog, prog);
}

int usage_brief(FILE *out, const char *prog)
{
    fprintf(out, "Usage: %s [options] program [arguments]\n\n", prog);
    usage_intro(out, prog);
    fputc('\n', out);
    for (int i = 0; i < OPT_COUNT; i++) {
        const struct opt *o = &opt_table[i];
        const char *end = strstr(o->help, ". ");
        size_t len = end ? (size_t)(end - o->help) : strlen(o->help) - 1;
        if (!(o->flags & OPT_F_BRIEF))
            continue;
        option_name(out, o, BRIEF_INDENT);
        fprintf(out, "%.*s\n", (int)len, o->help);
    }
    fprintf(out,
            "\n"
            "%s --help prints all options and the exit statuses; see also dlaunch(1).\n",
            prog);
    return usage_finish(out);
}

int usage_help(FILE *out, const char *prog)
{
    char text[1024], def[64];
    fprintf(out,
            "Usage: %s [options] program [arguments]\n"
            "       %s [options] -m module [arguments]\n"
            "       %s --conf FILE [options]\n"
            "       %s --rdzv_only | --witness HOST[:PORT] [options]\n"
            "\n",
            prog, prog, prog, prog);
    usage_intro(out, prog);
    fprintf(out, "\n"
                 "Modules, and files that end in .py and are not executable, are run by python3,\n"
                 "or by the interpreter $PYTHON_EXEC. ${local_rank} in an argument is replaced.\n");
    for (int g = 0; g < GROUP_COUNT; g++) {
        fprintf(out, "\n%s:\n", opt_groups[g].title);
        for (int i = 0; i < OPT_COUNT; i++) {
            const struct opt *o = &opt_table[i];
            if (o->group != (enum opt_group_id)g)
                continue;
            option_name(out, o, HELP_INDENT);
            snprintf(text, sizeof(text), "%s%s", o->help, default_text(o, def, sizeof(def)));
            wrap(out, text, HELP_INDENT, "", HELP_INDENT);
            fputc('\n', out);
        }
    }
    fprintf(out, "\n"
                 "TIME is in seconds; units are possible: 500ms, 15s, 10min, 2h. In option names,\n"
                 "'-' and '_' are the same, and unambiguous prefixes are accepted. Options that\n"
                 "are not given are read from the variables DLAUNCH_<OPTION> and PET_<OPTION>,\n"
                 "then from the --conf file.\n"
                 "\n"
                 "Exit status:\n");
    for (size_t i = 0; i < ARRAY_LEN(exit_statuses); i++)
        fprintf(out, "  %-7s %s\n", exit_statuses[i].status, exit_statuses[i].meaning);
    fprintf(out, "Under the name torchrun: 0, 2 for what argparse refuses, else 1.\n"
                 "\n"
                 "See dlaunch(1) for details and dlaunch.ini(5) for the file.\n");
    return usage_finish(out);
}

/* ------------------------------------------------------------------------------------------ ini */

static void ini_option(FILE *out, const struct opt *o)
{
    fputs("\n# ", out);
    wrap(out, o->help, 2, "# ", 2);
    if (o->kind == KIND_FLAG)
        fprintf(out, "\n;%s = %s\n", OPT_KEY(o), o->def ? "yes" : "no");
    else if (!o->def)
        fprintf(out, "\n;%s = %.*s\n", OPT_KEY(o),
                o->kind == KIND_CHOICE ? (int)strcspn(o->values, "|") : (int)strlen(o->values),
                o->values);
    else if (strchr(o->values, '|'))
        fprintf(out, "\n# %s\n;%s = %s\n", o->values, OPT_KEY(o), o->def);
    else
        fprintf(out, "\n;%s = %s\n", OPT_KEY(o), o->def);
}

int usage_ini(FILE *out)
{
    fputs("# dlaunch.ini: all keys of dlaunch --conf FILE, with their defaults.\n"
          "# Remove the ';' to set a value. See dlaunch.ini(5).\n"
          "#\n"
          "# All keys are also accepted in [job] and before the first section. A comment must be\n"
          "# a line of its own. A value can be in \"double quotes\". The command line, DLAUNCH_*\n"
          "# and PET_* variables have precedence over this file.\n",
          out);
    for (int g = 0; g < GROUP_COUNT; g++) {
        if (!opt_groups[g].section)
            continue;
        fprintf(out, "\n[%s]\n", opt_groups[g].section);
        if (g == GROUP_JOB)
            fputs(
                "\n# Program and arguments, quoted as for a shell (variables are not expanded). A "
                "program\n"
                "# on the command line replaces them all.\n"
                ";command = ./train --epochs 10\n",
                out);
        for (int i = 0; i < OPT_COUNT; i++) {
            bool cli = opt_table[i].flags & (OPT_F_CLI | OPT_F_CLIENV);
            if (opt_table[i].group == (enum opt_group_id)g && !cli)
                ini_option(out, &opt_table[i]);
        }
    }
    fputs("\n[env]\n"
          "\n# Set in the environment of every worker. Case matters here.\n"
          ";NCCL_DEBUG = WARN\n",
          out);
    return usage_finish(out);
}

/* ----------------------------------------------------------------------------------------- mdoc */

/* Prints text for mdoc: every sentence begins a line, dashes are escaped, and neither a backslash
 * nor a sign at the margin has a meaning. */
static void mdoc_text(FILE *out, const char *text)
{
    size_t at = 0;
    while (*text) {
        size_t n = strcspn(text, " ");
        bool ends = text[n - 1] == '.' || text[n - 1] == ';';
        if (at && at + 1 + n >= USAGE_COLUMNS - 8) {
            fputc('\n', out);
            at = 0;
        }
        if (at)
            fputc(' ', out);
        else if (*text == '.' || *text == '\'')
            fputs("\\&", out);
        for (size_t i = 0; i < n; i++) {
            if (text[i] == '\\' || text[i] == '-')
                fputc('\\', out);
            fputc(text[i] == '\\' ? 'e' : text[i], out);
        }
        at += n + 1;
        text += n;
        text += strspn(text, " ");
        if (ends && *text) {
            fputc('\n', out);
            at = 0;
        }
    }
    fputc('\n', out);
}

int usage_mdoc(FILE *out)
{
    fputs(".\\\" Generated by dlaunch --print_options mdoc; do not edit.\n", out);
    for (int g = 0; g < GROUP_COUNT; g++) {
        fprintf(out, ".Ss %s\n.Bl -tag -width Ds\n", opt_groups[g].title);
        for (int i = 0; i < OPT_COUNT; i++) {
            const struct opt *o = &opt_table[i];
            char def[64];
            if (o->group != (enum opt_group_id)g)
                continue;
            fputs(".It ", out);
            if (o->letter)
                fprintf(out, "Fl %c , ", o->letter);
            fprintf(out, "Fl \\-%s", OPT_KEY(o));
            if (o->kind != KIND_FLAG)
                fprintf(out, " Ar %s", o->values);
            fputc('\n', out);
            mdoc_text(out, o->help);
            if (*default_text(o, def, sizeof(def)))
                mdoc_text(out, def + 1);
        }
        fputs(".El\n", out);
    }
    return usage_finish(out);
}

/* ----------------------------------------------------------------------------------------- bash */

/* Lists the words of "N|auto|cpu" that are not placeholders, with blanks between. */
static const char *real_words(const struct opt *o, char *out, size_t cap)
{
    size_t len, used = 0;
    const char *w;
    out[0] = '\0';
    for (int i = 0; o->kind != KIND_FLAG && (w = opt_word(o->values, i, &len)); i++) {
        bool alone = i == 0 && !w[len];
        if ((w[0] >= 'A' && w[0] <= 'Z') || alone || used >= cap)
            continue;
        used += (size_t)snprintf(out + used, cap - used, "%s%.*s", used ? " " : "", (int)len, w);
    }
    return out;
}

/* Prints the names of all options, or of the flags, broken into lines. */
static void bash_names(FILE *out, bool flags)
{
    size_t at = USAGE_COLUMNS;
    for (int i = 0; i < OPT_COUNT; i++) {
        const struct opt *o = &opt_table[i];
        if (flags && o->kind != KIND_FLAG)
            continue;
        if (at + 1 + strlen(o->name) >= USAGE_COLUMNS) {
            fputs("\n       ", out);
            at = 7;
        }
        at += (size_t)fprintf(out, " %s", o->name);
    }
}

static const char bash_begin[] =
    "# bash completion for dlaunch(1) and dlaunchctl(1).\n"
    "# Generated by dlaunch --print_completion bash; do not edit.\n"
    "# shellcheck shell=bash disable=SC2207\n"
    "\n"
    "_dlaunch() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
    "    local i word words=''\n"
    "    local options='";
static const char bash_middle[] =
    "    COMPREPLY=()\n"
    "    # Behind the program, complete as for the program.\n"
    "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
    "        word=${COMP_WORDS[i]}\n"
    "        case $word in\n"
    "        --) ((i++)) && break ;;\n"
    "        --*)\n"
    "            word=${word:2} && word=--${word//-/_}\n"
    "            [[ $flags == *\" $word \"* || ${COMP_WORDS[i + 1]} == [=:]* ]] || ((i++))\n"
    "            ;;\n"
    "        -[rtHfienx] | -np | -ppn) ((i++)) ;;\n"
    "        -*) ;;\n"
    "        *) break ;;\n"
    "        esac\n"
    "        # --option=value and MIN:MAX come as three words.\n"
    "        while [[ ${COMP_WORDS[i + 1]} == [=:]* ]]; do ((i += 2)); done\n"
    "    done\n"
    "    if ((i < COMP_CWORD)); then\n"
    "        declare -F _command_offset > /dev/null && _command_offset \"$i\"\n"
    "        return\n"
    "    fi\n"
    "    # --option=value comes as three words.\n"
    "    if [[ $cur == = ]]; then\n"
    "        cur=''\n"
    "    elif [[ $prev == = ]]; then\n"
    "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    fi\n"
    "    [[ $prev == --* ]] && prev=${prev:2} && prev=--${prev//-/_}\n"
    "    case $prev in\n";
static const char bash_end[] =
    "    esac\n"
    "    if [[ -n $words ]]; then\n"
    "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
    "    elif [[ $cur == -* && ($prev != -* || $flags == *\" $prev \"*) ]]; then\n"
    "        [[ $cur == --* ]] && cur=${cur:2} && cur=--${cur//-/_}\n"
    "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
    "    fi\n"
    "}\n"
    "complete -o bashdefault -o default -F _dlaunch dlaunch\n"
    "\n"
    "_dlaunchctl() {\n"
    "    COMPREPLY=($(compgen -W 'status describe events wait logs stop kill restart signal causes "
    "--job --follow --ranks --ready --timeout --wait --output --json --help --version' \\\n"
    "        -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
    "}\n"
    "complete -F _dlaunchctl dlaunchctl\n";

int usage_bash(FILE *out)
{
    char words[128];
    fputs(bash_begin, out);
    bash_names(out, false);
    fputs("'\n    local flags='", out);
    bash_names(out, true);
    fputs(" -m -h '\n    flags=\" ${flags//[[:space:]]/ } \"\n", out);
    fputs(bash_middle, out);
    for (int i = 0; i < OPT_COUNT; i++) {
        const struct opt *o = &opt_table[i];
        if (*real_words(o, words, sizeof(words)))
            fprintf(out, "    %s) words='%s' ;;\n", o->name, words);
    }
    fputs(bash_end, out);
    return usage_finish(out);
}
