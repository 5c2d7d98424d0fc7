#!/usr/bin/env bash
# Runs the build stage of deploy/Containerfile step by step in a copy of what is committed, and then its image's command in a root that
# holds what the image would, as the image's user. It needs root for that last part, and no container engine.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/src" "$dir/out" "$dir/root"
git archive HEAD | tar -x -C "$dir/src"
VERSION=image
stage=0 entry='' user=''
while IFS= read -r line; do
  case $line in
    FROM*) stage=$((stage + 1)) ;;
    RUN*)
      [ $stage = 1 ] || { echo "RUN in an image from scratch: there is no shell"; exit 1; }
      step=${line#RUN }
      echo "+ $step"
      (cd "$dir/src" && VERSION=$VERSION bash -euc "${step//\/out\//$dir/out/}")
      ;;
    "COPY --from=build /out/"*) set -- $line; cp "$dir${3}" "$dir/root$4" ;;
    "COPY --from=build /etc/"*) set -- $line; [ -e "$3" ] || { echo "$3 is not in the build image"; exit 1; }; mkdir -p "$dir/root$(dirname "$4")"; cp "$3" "$dir/root$4" ;;
    USER*) user=${line#USER } ;;
    ENTRYPOINT*) entry=$(sed 's/.*\["\(.*\)"\].*/\1/' <<<"$line") ;;
    ''|'#'*|WORKDIR*|COPY*|ARG*|EXPOSE*|STOPSIGNAL*|CMD*) ;;
    *) echo "deploy/Containerfile: what is: $line"; exit 1 ;;
  esac
done <deploy/Containerfile
case $user in 0*|root*|'') echo "the image runs as root"; exit 1 ;; esac
chmod 755 "$dir" "$dir/root" && chmod -R go+rX "$dir/root"
if [ "$(id -u)" = 0 ]; then
  echo "+ $entry version, as $user in a root of: $(cd "$dir/root" && find . -type f | tr '\n' ' ')"
  chroot --userspec="$user" "$dir/root" "$entry" version
else
  "$dir/root$entry" version
fi
