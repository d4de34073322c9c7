# Packages of Debian and its like, source and built, for third_party, old_llvm and bare_root. They
# set `sources` (the folder) and `fail`. apt verifies what it fetches.

# The repositories of this machine's distribution as "URI suite component".
repositories() {
  local suite
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
    sort -u | grep -E " $suite(-updates)? (main|universe)\$"
}

# The repositories of a suite. One other than this machine's comes from the same places, and with
# its security archive, which lies beside the main one.
repositories_of() {
  local suite=$1 own
  own=$(. /etc/os-release && echo "$VERSION_CODENAME")
  repositories | sed "s/ $own/ $suite/"
  if [[ $suite != "$own" ]]; then
    repositories | sed -n "1s|/* .*|-security $suite-security main|p"
  fi
}

# apt_of SUITE COMMAND...: apt with its own lists, since the machine's may lack source packages.
# What the machine has installed is not seen.
apt_of() {
  local suite=$1 place=$sources/apt-$1
  shift
  if [[ ! -e $place/apt.list ]]; then
    mkdir -p "$place"/{state/lists,cache/archives}/partial
    repositories_of "$suite" | sed 's/^/deb /p; s/^deb /deb-src /' >"$place/apt.new" || true
    [[ -s $place/apt.new ]] || fail "apt lists no packages: run apt-get update first"
    mv "$place/apt.new" "$place/apt.list"
    apt_of "$suite" apt-get update ||
      { rm "$place/apt.list" && fail "apt cannot list the packages of $suite"; }
  fi
  local command=$1
  shift
  "$command" -qq -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::SourceList="$place/apt.list" \
    -o Dir::State="$place/state" -o Dir::State::status=/dev/null -o Dir::Cache="$place/cache" \
    -o Dir::Etc::TrustedParts=/usr/share/keyrings -o APT::Sandbox::User=root "$@"
}

# download NAME SUITE: the archives of a source package, in $sources/archives/NAME.
download() {
  local name=$1 suite=$2
  mkdir -p "$sources/archives/$name"
  # A detached signature may be missing from a mirror; what matters has a hash that apt checks.
  (cd "$sources/archives/$name" && apt_of "$suite" apt-get source --download-only "$name") \
    2>/dev/null || true
  local archives=("$sources/archives/$name"/*.orig.tar.*[!c])
  [[ -e ${archives[0]} ]] || fail "apt has no source package '$name' in $suite"
}

# unpack_packages SUITE FOLDER NAME...: built packages of a suite, unpacked into the folder.
unpack_packages() {
  local suite=$1 folder=$2 archives=$sources/archives/$1 name
  shift 2
  mkdir -p "$archives" "$folder"
  for name in "$@"; do
    rm -f "$archives/${name}_"*.deb
    (cd "$archives" && apt_of "$suite" apt-get download "$name") >/dev/null ||
      fail "apt cannot download '$name' of $suite"
    dpkg-deb -x "$archives/${name}_"*.deb "$folder"
  done
}
