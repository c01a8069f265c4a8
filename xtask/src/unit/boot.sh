#!/bin/sh
# Boots a separate systemd as PID 1 of new namespaces, on an overlay of this machine's root. The machine itself is not changed.
# usage: boot.sh EMPTY_FOLDER PROGRAM DEPLOY_SYSTEMD SHARED_FOLDER PROJECT RELEASE
set -eu
top=$1 program=$2 deploy=$3 shared=$4 project=$5 release=$6
mount --make-rprivate /
mount -t tmpfs tmpfs "$top"
mkdir "$top/upper" "$top/work" "$top/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" "$top/root"
root=$top/root
mkdir -p "$root/shared" "$root/old"
mount --bind "$shared" "$root/shared"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
umount -l "$root/sys/fs/cgroup"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount --rbind /dev "$root/dev"
mkdir -p "$root$project"
mount --bind "$project" "$root$project"
cp "$program" "$root/usr/bin/tokengap"
units=$root/etc/systemd/system
mkdir -p "$units/tokengap.service.d"
cp "$deploy/tokengap.service" "$units/"
sed 's/^headless = true/json = true/' "$deploy/tokengap.toml" > "$root/etc/tokengap.toml"
# Change only what the test needs: this systemd starts two services and nothing else.
cat > "$units/tokengap.service.d/test.conf" <<'UNIT'
[Unit]
DefaultDependencies=no
[Service]
RestartSec=1
StandardOutput=truncate:/shared/report.json
StandardError=append:/shared/log
UNIT
cat > "$units/engine.service" <<UNIT
[Unit]
DefaultDependencies=no
[Service]
WorkingDirectory=$project
Environment=PYTHONPATH=$project/.engine/$release
ExecStart=/bin/sh -c 'sleep 300 | exec .venv-testbed/bin/python -m testbed $release launch --rounds 0 --requests 8 --gap 0.005 --deadline 90'
StandardOutput=append:/shared/engine.log
StandardError=append:/shared/engine.log
UNIT
cat > "$units/steps.service" <<'UNIT'
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/bash /shared/steps.sh
StandardOutput=append:/shared/steps.log
StandardError=append:/shared/steps.log
UNIT
cd "$root"
pivot_root . old
umount -l /old
exec env -i container=test PATH="$PATH" /usr/lib/systemd/systemd --system --log-target=null --show-status=no --unit=steps.service </dev/null
