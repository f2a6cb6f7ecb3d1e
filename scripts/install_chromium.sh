#!/bin/sh
# Installs Chromium, which the tests of the web page use, if it is missing and no password is needed. Without Chromium
# these tests are skipped.
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null && apt-get install -qq -y --no-install-recommends chromium >/dev/null && exit 0
fi
echo "chromium: not installed; the tests that need a browser are skipped" >&2
