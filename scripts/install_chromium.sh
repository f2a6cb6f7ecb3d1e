#!/bin/sh
# The page's tests look at it in chromium. Where there is none it is installed if that takes no password;
# where that is not possible the tests are skipped and say so.
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null && apt-get install -qq -y --no-install-recommends chromium >/dev/null && exit 0
fi
echo "chromium: not here and not installed; the tests that need a browser are skipped" >&2
