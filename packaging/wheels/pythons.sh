# Interpreters of Python with headers, for tools/wheels and tools/test_packages.

# The newest interpreter of a version among those in PATH and those of pyenv.
python_of() {
  local version=$1 candidate
  for candidate in "/usr/bin/python$version" "$HOME"/.pyenv/versions/"$version".*/bin/python \
    "$(command -v "python$version" || true)"; do
    if [[ -x $candidate ]] && "$candidate" -c "import sys, sysconfig, os
sys.exit('%d.%d' % sys.version_info[:2] != '$version' or
         not os.path.exists(sysconfig.get_path('include') + '/Python.h'))" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}
