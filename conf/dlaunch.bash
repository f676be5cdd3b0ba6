# bash completion for dlaunch(1) and dlaunchctl(1).
# Made by dlaunch --print_completion bash; do not edit.
# shellcheck shell=bash disable=SC2207

_dlaunch() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local i word words=''
    local options='
        --nnodes --nproc_per_node --spares --elastic --node_rank --role
        --standalone --no_detect --rdzv_backend --rdzv_endpoint
        --coordinator_loss --rdzv_only --witness --rdzv_id --rdzv_conf
        --master_addr --master_port --local_addr --interface --master_store
        --store_compat --token_file --token_fd --insecure --new_token --module
        --no_python --run_path --use_env --stdin --virtual_local_rank
        --start_method --max_restarts --max_node_restarts --no_restart_codes
        --progress_time --restart_policy --restart_backoff --monitor_interval
        --timeout --shutdown_timeout --signals_to_handle --isolate --log_dir
        --redirects --tee --local_ranks_filter --duplicate_stdout_filters
        --duplicate_stderr_filters --log_line_prefix_template --report
        --log_file --quiet --verbose --event_log_handler --logs_specs --bind
        --numa_binding --gpu_check --gpu_memory_wait --daemon --pid_file --conf
        --print_config --print_binding --dry_run --print_completion
        --print_options --version --help'
    local flags='
        --elastic --standalone --no_detect --rdzv_only --insecure --new_token
        --module --no_python --run_path --use_env --virtual_local_rank --quiet
        --verbose --daemon --print_config --print_binding --dry_run --version
        --help -m -h '
    flags=" ${flags//[[:space:]]/ } "
    COMPREPLY=()
    # Behind the program, complete as for the program.
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in
        --) ((i++)) && break ;;
        --*)
            word=${word:2} && word=--${word//-/_}
            [[ $flags == *" $word "* || ${COMP_WORDS[i + 1]} == [=:]* ]] || ((i++))
            ;;
        -[rt]) ((i++)) ;;
        -*) ;;
        *) break ;;
        esac
        # --option=value and MIN:MAX come as three words.
        while [[ ${COMP_WORDS[i + 1]} == [=:]* ]]; do ((i += 2)); done
    done
    if ((i < COMP_CWORD)); then
        declare -F _command_offset > /dev/null && _command_offset "$i"
        return
    fi
    # --option=value comes as three words.
    if [[ $cur == = ]]; then
        cur=''
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    [[ $prev == --* ]] && prev=${prev:2} && prev=--${prev//-/_}
    case $prev in
    --nproc_per_node) words='auto cpu gpu' ;;
    --node_rank) words='any' ;;
    --rdzv_backend) words='static c10d file' ;;
    --coordinator_loss) words='elect end' ;;
    --master_store) words='agent relay none' ;;
    --store_compat) words='2.1 1.13' ;;
    --stdin) words='none rank0 all' ;;
    --start_method) words='spawn fork forkserver' ;;
    --max_node_restarts) words='any' ;;
    --restart_policy) words='group worker' ;;
    --isolate) words='auto none pidns' ;;
    --bind) words='none core numa' ;;
    --numa_binding) words='node socket exclusive core-complex' ;;
    --gpu_check) words='auto off free' ;;
    --print_completion) words='bash zsh tcsh' ;;
    --print_options) words='ini mdoc' ;;
    esac
    if [[ -n $words ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
    elif [[ $cur == -* && ($prev != -* || $flags == *" $prev "*) ]]; then
        [[ $cur == --* ]] && cur=${cur:2} && cur=--${cur//-/_}
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
    fi
}
complete -o bashdefault -o default -F _dlaunch dlaunch

_dlaunchctl() {
    COMPREPLY=($(compgen -W 'status stop --json --job --wait --help --version' \
        -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -F _dlaunchctl dlaunchctl
