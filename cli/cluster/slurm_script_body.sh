set -uo pipefail
if [[ -z ${SLURM_JOB_ID:-} ]]; then
  echo "submit this script with sbatch: there is no allocation here" >&2
  exit 2
fi
cd -- "$directory" || exit 2
logs=$run_directory/logs/slurm
attempt=$logs/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
if ! mkdir -p -- "$attempt" || ! ln -sfn -- "${attempt##*/}" "$logs/latest"; then
  exit 7
fi
run_file=$attempt/run.yaml
write_run_file >"$run_file" || exit 7
files=${attempt//%/%%} # as srun reads file names
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
# Steps must not inherit the requests of the job.
unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE \
  SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_GPUS_PER_NODE
# With --exact, each step gets only what it requests, so that steps can share a node.
step=(srun --exact --mem=0 --kill-on-bad-exit=0 --input=none --open-mode=append)
stopping=0
stop_at=0

say() { printf '%(%F %T)T %s\n' -1 "$*"; }

# signal_steps SIGNAL NAME: signals the tasks of the steps with that name. Not through their srun, which would kill them.
signal_steps() {
  local id name
  while read -r id name; do
    if [[ $name == "$2" ]]; then
      scancel --signal="$1" "$id"
    fi
  done < <(squeue --noheader --steps --job="$SLURM_JOB_ID" --format='%i %j')
}

# shellcheck disable=SC2317 # called by trap
on_term() {
  if ((stopping)); then
    return
  fi
  stopping=1
  stop_at=$((SECONDS + stop_seconds))
  say "told to stop (time limit, preemption or scancel): the trainer saves first, $stop_seconds s at most"
  signal_steps TERM trainer
}
trap on_term TERM

nap() { # One second, or until a signal.
  sleep 1 &
  wait "$!"
}

# check_node RUN_FILE SERVER TRAINER GPUS INPUT...: checks what the run needs on a node, before anything is loaded.
# shellcheck disable=SC2317 # called by the shells of a step
check_node() {
  local bad=0 path
  lacks() {
    echo "$(hostname): $*"
    bad=3
  }
  for path in "${@:5}"; do
    [[ -r $path ]] || lacks "$path is not there, or cannot be read"
  done
  command -v "$2" >/dev/null || lacks "$2: no such program"
  if ((${4} > 0)); then
    command -v nvidia-smi >/dev/null || lacks "nvidia-smi: no such program, so no GPU driver"
    local count
    count=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
    ((count >= ${4})) || lacks "$count GPUs, $4 are needed"
  fi
  if [[ ! -r $1 ]]; then
    lacks "$1 was written on the first node and is not here: the run directory must be on a shared file system"
  elif command -v "$3" >/dev/null; then
    "$3" --config "$1" --dry-run >/dev/null || lacks "$3 does not take this configuration"
  else
    lacks "$3: no such program"
  fi
  return "$bad"
}

preflight() {
  local check=("$trainer" --config "$run_file" --dry-run)
  if ((${#container[@]} == 0)); then
    check=(bash -c "$(declare -f check_node); check_node \"\$@\"" check_node
      "$run_file" "$rollout_server" "$trainer" "$gpus_per_node" "${inputs[@]}")
  fi
  if ! "${step[@]}" "${preflight_step[@]}" "${container[@]}" --job-name=preflight "${check[@]}" >"$attempt/preflight.log" 2>&1; then
    say "preflight: not every node has what the run needs"
    cat -- "$attempt/preflight.log"
    return 3
  fi
}

# serve NUMBER: runs one server until the job ends. A server that dies is restarted at its address.
serve() {
  local name=rollout_server_$1 node=$((first_server_node + $1 / servers_per_node)) restarts=0 port=0 host=127.0.0.1 observe=() code
  if ((num_nodes > 1)); then
    host=0.0.0.0
  fi
  if ((base_port > 0)); then
    port=$((base_port + $1))
  fi
  if ((observe_port > 0)); then
    observe=(--set "server.observe_listen=$observe_host:$((observe_port + $1))")
  fi
  while :; do
    "${step[@]}" "${server_step[@]}" --relative="$node" "${container[@]}" --job-name="$name" --output="$files/$name.log" \
      "$rollout_server" --config "$run_file" --listen "$host:$port" --port-file "$attempt/$name.port" "${observe[@]}"
    code=$?
    if [[ -e $attempt/ending ]]; then
      return
    fi
    case $code in 2 | 3 | 5 | 6 | 8) restarts=$max_restarts ;; esac
    if ((restarts >= max_restarts)); then
      say "$name ended with code $code and is not started again"
      echo "$code" >"$attempt/$name.exit"
      return
    fi
    restarts=$((restarts + 1))
    say "$name ended with code $code: starting it again ($restarts of $max_restarts)"
    if [[ -s $attempt/$name.port ]]; then
      port=$(<"$attempt/$name.port")
    fi
    nap
  done
}

# Sets `servers` to HOST:PORT,... when all are ready. If one cannot be, returns the exit code of the job.
wait_for_servers() {
  local deadline=$((SECONDS + ready_seconds)) number name host missing
  while :; do
    servers=
    missing=()
    for ((number = 0; number < num_servers; ++number)); do
      name=rollout_server_$number
      host=127.0.0.1
      if ((num_nodes > 1)); then
        host=${nodes[first_server_node + number / servers_per_node]}
      fi
      if [[ -s $attempt/$name.exit ]]; then
        tail -n 20 -- "$attempt/$name.log"
        return "$(<"$attempt/$name.exit")"
      elif [[ -s $attempt/$name.port ]]; then
        servers+=${servers:+,}$host:$(<"$attempt/$name.port")
      else
        missing+=("$name")
      fi
    done
    if ((${#missing[@]} == 0)); then
      return 0
    elif ((stopping)); then
      return 143
    elif ((SECONDS > deadline)); then
      say "not ready after $ready_seconds s: ${missing[*]}; their logs are in $attempt"
      return 4
    fi
    nap
  done
}

train() {
  {
    "${step[@]}" "${trainer_step[@]}" "${container[@]}" --job-name=trainer --output="$files/trainer_%t.log" \
      "$trainer" --config "$run_file" --servers "$servers" --resume-or-start
    echo "$?" >"$attempt/trainer.exit"
  } &
  local pid=$! code=10
  # The exit code is in the file, because a signal interrupts `wait` but not the trainer.
  while [[ ! -s $attempt/trainer.exit ]] && kill -0 "$pid" 2>/dev/null; do
    if ((stopping && SECONDS > stop_at)); then
      say "the trainer did not save in $stop_seconds s (launch.stop_seconds): the last checkpoint counts"
      return 143
    fi
    nap
  done
  if [[ -s $attempt/trainer.exit ]]; then
    code=$(<"$attempt/trainer.exit")
  fi
  if ((code > 128 && code != 130 && code != 143)); then
    say "a rank was ended by signal $((code - 128))"
    code=10
  fi
  if ((code != 0 && code != 130 && code != 143)); then
    tail -n 20 -- "$attempt"/trainer_*.log
  fi
  return "$code"
}

newest_checkpoint() { find "$run_directory/checkpoints" -name 'step_*' -printf '%f\n' 2>/dev/null | sort -V | tail -n 1; }

# requeue CODE: queues the job again if another attempt may succeed, and returns whether it did.
requeue() {
  local state failures=$logs/$SLURM_JOB_ID.failures count newest
  newest=$(newest_checkpoint)
  state=$(squeue --noheader --job="$SLURM_JOB_ID" --format=%T)
  if [[ $state != RUNNING ]]; then
    say "the job is ${state:-gone} (scancel?): not queued again"
    return 1
  fi
  # An attempt that was stopped did not fail if it made progress.
  if ((!stopping)) || [[ $newest == "$checkpoint_at_start" ]]; then
    echo "attempt ${SLURM_RESTART_COUNT:-0}: code $1" >>"$failures" || return 1
    count=$(wc -l <"$failures")
    if ((count > max_restarts)); then
      say "$count attempts failed (launch.slurm.max_restarts is $max_restarts): not queued again"
      return 1
    fi
  fi
  say "queued again: the next attempt goes on from ${newest:-the start}"
  scontrol requeue "$SLURM_JOB_ID"
}

# finish CODE: ends the servers and then the job, or only this attempt.
finish() {
  local until=$((SECONDS + 10)) number
  touch -- "$attempt/ending"
  for ((number = 0; number < num_servers; ++number)); do
    signal_steps TERM "rollout_server_$number"
  done
  while [[ -n $(jobs -pr) ]] && ((SECONDS < until)); do
    nap
  done
  case $1 in
    0) say "done: $run_directory" ;;
    2 | 3 | 5 | 6 | 8) say "exit code $1: another attempt would end the same way, so the job is not queued again" ;;
    *) requeue "$1" ;;
  esac
  exit "$1"
}

checkpoint_at_start=$(newest_checkpoint)
say "attempt ${SLURM_RESTART_COUNT:-0} of job $SLURM_JOB_ID on ${nodes[*]}; logs: $attempt"
preflight || finish "$?"
for ((number = 0; number < num_servers; ++number)); do
  serve "$number" &
done
wait_for_servers || finish "$?"
say "servers: $servers"
if ((stopping)); then
  finish 143
fi
train
finish "$?"
