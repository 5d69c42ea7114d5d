# Brings a fresh instance to the point where systemd trains. The variables NITRO_* and BOOT_* stand above this text.
#
# Every step that fails is reported: in the log, in the bucket under boot/, as a metric, and to the stack, whose creation
# fails then. A failed instance ends itself; its group launches another, until BOOT_LAUNCHES_MAX were launched: then the
# group is set to 0 and stays there.
#
# `give-up REASON` does the last part for the unit that systemd starts when the learner keeps dying.
#
# BOOT_ROOT is put before every path that is written, BOOT_METADATA is where the instance's metadata are: for tests.

set -Eeuo pipefail
umask 022
export HOME="${HOME:-/root}" DEBIAN_FRONTEND=noninteractive AWS_DEFAULT_REGION="$BOOT_REGION" AWS_PAGER=""
readonly root="${BOOT_ROOT:-}" metadata="${BOOT_METADATA:-http://169.254.169.254}/latest"
readonly here="$root/opt/nitro" logs="$root/var/log/nitro" results="s3://$NITRO_RESULTS_BUCKET/$NITRO_RESULTS_PREFIX"
readonly agent="/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
step="start"
log="$logs/boot.log"

run_step() {  # NAME COMMAND…
    step="$1"
    echo "$(date -u +%FT%TZ) $step"
    shift
    "$@"
}

retry() {  # COMMAND…: mirrors and networks have bad moments
    local pause_s
    for pause_s in 5 20 60; do
        "$@" && return 0
        echo "again in $pause_s s: $1" >&2
        sleep "${BOOT_PAUSE_S:-$pause_s}"
    done
    "$@"
}

metadatum() {  # NAME
    curl --silent --show-error --fail --max-time 5 --header "X-aws-ec2-metadata-token: $token" \
        "$metadata/meta-data/$1"
}

identify() {
    token=$(retry curl --silent --show-error --fail --max-time 5 --request PUT \
        --header "X-aws-ec2-metadata-token-ttl-seconds: 600" "$metadata/api/token")
    NITRO_INSTANCE_ID=$(metadatum instance-id)
    NITRO_INSTANCE_TYPE=$(metadatum instance-type)
    NITRO_IMAGE_ID=$(metadatum ami-id)
    NITRO_PRIVATE_ADDRESS=$(metadatum local-ipv4)
    export NITRO_INSTANCE_ID NITRO_INSTANCE_TYPE NITRO_IMAGE_ID NITRO_PRIVATE_ADDRESS
}

report() {  # MESSAGE: never fails, whatever does not work
    local record
    record=$(python3 -c 'import json, os, sys; print(json.dumps({
        "instance_id": os.environ.get("NITRO_INSTANCE_ID"), "step": sys.argv[1], "message": sys.argv[2],
        "log": open(sys.argv[3], errors="replace").read()[-8000:] if os.path.exists(sys.argv[3]) else ""}))' \
        "$step" "$1" "$log") || record="{}"
    echo "$1" >&2
    printf '%s\n' "$record" | aws s3 cp - "${results}boot/${NITRO_INSTANCE_ID:-unknown}-$step.json" || true
    aws cloudwatch put-metric-data --namespace Nitro --metric-name BootFailures --value 1 \
        --dimensions "Experiment=$NITRO_EXPERIMENT,Run=$NITRO_RUN" || true
}

release() {  # no instance takes this one's place any more
    retry aws autoscaling set-desired-capacity --auto-scaling-group-name "$NITRO_LEARNER_GROUP" --desired-capacity 0 \
        --no-honor-cooldown
}

failed() {  # LINE COMMAND
    if [ "$BASH_SUBSHELL" -gt 0 ]; then
        echo "in line $1: $2" >&2
        exit 1
    fi
    trap - ERR
    set +e
    report "step '$step' failed in line $1: $2"
    aws cloudformation signal-resource --stack-name "$BOOT_STACK_ID" --status FAILURE \
        --logical-resource-id "$NITRO_LEARNER_RESOURCE" --unique-id "${NITRO_INSTANCE_ID:-unknown}" || true
    # So that people can read the log's end where it is shipped to.
    sleep "${BOOT_PAUSE_S:-10}"
    shutdown -h now
    exit 1
}

give_up() {  # REASON
    step="give-up"
    report "$1"
    release || shutdown -h now
}

get_tools() {
    local packages=()
    python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
    if [ "$BOOT_CACHE_KIND" = learner ] && ! command -v valkey-server redis-server >/dev/null; then
        packages+=(redis-server)
    fi
    if [ ${#packages[@]} -gt 0 ]; then
        retry apt-get -o DPkg::Lock::Timeout=300 update
        retry apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends "${packages[@]}"
    fi
    if [[ " ${packages[*]} " == *" redis-server "* ]]; then
        # The learner starts one of its own; the package's would stand there open.
        systemctl disable --now redis-server
    fi
}

read_stack() {
    local created
    created=$(retry aws cloudformation describe-stacks --stack-name "$BOOT_STACK_ID" --output text \
        --query 'Stacks[0].CreationTime')
    NITRO_BILLED_SINCE=$(date -d "$created" +%s)
    export NITRO_BILLED_SINCE
}

count_launch() {  # of this deployment, not of earlier ones of the same run
    local launches deployment="launches/${BOOT_STACK_ID##*/}/"
    date -u +%FT%TZ | aws s3 cp - "$results$deployment$NITRO_INSTANCE_ID"
    launches=$(aws s3api list-objects-v2 --bucket "$NITRO_RESULTS_BUCKET" --query 'length(Contents)' --output text \
        --prefix "$NITRO_RESULTS_PREFIX$deployment")
    echo "launch $launches of $BOOT_LAUNCHES_MAX"
    if [ "$launches" -gt "$BOOT_LAUNCHES_MAX" ]; then
        give_up "this was launch $launches; learner.launches_max = $BOOT_LAUNCHES_MAX"
        exit 0
    fi
}

get_files() {
    mkdir -p "$here"
    retry aws s3 cp --only-show-errors "$BOOT_ASSET_URL" "$here/files.zip"
    python3 -m zipfile -e "$here/files.zip" "$here"
}

install_requirements() {
    [ -x "$here/.venv/bin/python" ] || python3 -m venv "$here/.venv"
    local pip=("$here/.venv/bin/python" -m pip install --disable-pip-version-check --no-input --quiet)
    retry "${pip[@]}" --requirement "$here/requirements.txt"
    # The experiment's own environment, within the versions that are installed.
    (cd "$here/package" && retry "${pip[@]}" --constraint "$here/requirements.txt" --requirement requirements.txt)
    (cd "$here" && .venv/bin/python -c 'import runtime.deployed')
}

ship_logs() {
    if [ ! -x "$agent" ] && ! command -v amazon-cloudwatch-agent-ctl >/dev/null; then
        retry curl --silent --show-error --fail --max-time 120 --output "$here/agent.deb" \
            "https://amazoncloudwatch-agent-$BOOT_REGION.s3.$BOOT_REGION.amazonaws.com/ubuntu/$(dpkg --print-architecture)/latest/amazon-cloudwatch-agent.deb"
        retry dpkg --install "$here/agent.deb"
    fi
    cat >"$here/agent.json" <<END
{"agent": {"run_as_user": "root"},
 "logs": {"logs_collected": {"files": {"collect_list": [
    {"file_path": "$logs/boot.log", "log_group_name": "$BOOT_LOG_GROUP", "log_stream_name": "$NITRO_INSTANCE_ID/boot"},
    {"file_path": "$logs/learner.log", "log_group_name": "$BOOT_LOG_GROUP", "log_stream_name": "$NITRO_INSTANCE_ID/learner"}
 ]}}}}
END
    "$(command -v amazon-cloudwatch-agent-ctl || echo "$agent")" -a fetch-config -m ec2 -s -c "file:$here/agent.json"
}

write_environment() {
    mkdir -p "$root/etc/nitro"
    (umask 077 && env | grep '^NITRO_' | sort >"$root/etc/nitro/deployment.env")
    printf '%s\n' "AWS_REGION=$BOOT_REGION" "AWS_DEFAULT_REGION=$BOOT_REGION" >>"$root/etc/nitro/deployment.env"
}

start_learner() {
    mkdir -p "$root/etc/systemd/system"
    cat >"$root/etc/systemd/system/nitro-learner.service" <<END
[Unit]
Description=Nitro learner
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=1h
StartLimitBurst=5
OnFailure=nitro-give-up.service

[Service]
Type=exec
DynamicUser=yes
StateDirectory=nitro
WorkingDirectory=$here
EnvironmentFile=$root/etc/nitro/deployment.env
Environment=HOME=$root/var/lib/nitro PYTHONUNBUFFERED=1
ExecStart=$here/.venv/bin/python -m runtime.deployed $here/experiment.yaml $root/var/lib/nitro/run
Restart=on-abnormal
RestartSec=10
TimeoutStopSec=90
KillMode=mixed
SuccessExitStatus=129 130 143
StandardOutput=append:$logs/learner.log
StandardError=append:$logs/learner.log

[Install]
WantedBy=multi-user.target
END
    cat >"$root/etc/systemd/system/nitro-give-up.service" <<END
[Unit]
Description=Ends the instance of a learner that cannot go on

[Service]
Type=oneshot
ExecStart=/bin/bash $here/boot.sh give-up "the learner keeps dying; its log tells why"
END
    systemctl daemon-reload
    systemctl enable --now nitro-learner.service
}

if [ "${1:-}" = give-up ]; then
    # shellcheck disable=SC1091
    set -a && . "$root/etc/nitro/deployment.env" && set +a
    log="$logs/learner.log"
    give_up "$2"
    exit 0
fi
trap 'failed "$LINENO" "$BASH_COMMAND"' ERR
mkdir -p "$here" "$logs"
chmod 755 "$here"
exec > >(tee -a "$log") 2>&1
install -m 700 "$0" "$here/boot.sh"
run_step identify identify
run_step launches count_launch
run_step stack read_stack
run_step tools get_tools
run_step files get_files
run_step requirements install_requirements
run_step logs ship_logs || report "logs are not shipped"
run_step environment write_environment
run_step learner start_learner
echo "$(date -u +%FT%TZ) done"
