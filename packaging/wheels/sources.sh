# Source packages of Debian and its like, for third_party and old_root, which set `sources` (the
# folder) and `fail`. apt verifies what it fetches.

# The repositories of this machine's distribution as "URI suite component".
repositories() {
  local suite
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
    sort -u | grep -E " $suite(-updates)? (main|universe)\$"
}

# apt_of SUITE COMMAND...: apt with its own lists, since the machine's may lack source packages.
# A suite other than this machine's comes from the same places.
apt_of() {
  local suite=$1 place=$sources/apt-$1 own
  shift
  if [[ ! -e $place/apt.list ]]; then
    own=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mkdir -p "$place"/{state/lists,cache/archives}/partial
    repositories | sed "s/^/deb-src /; s/ $own/ $suite/" >"$place/apt.new" || true
    [[ -s $place/apt.new ]] || fail "apt lists no packages: run apt-get update first"
    mv "$place/apt.new" "$place/apt.list"
    apt_of "$suite" apt-get update ||
      { rm "$place/apt.list" && fail "apt cannot list the source packages of $suite"; }
  fi
  local command=$1
  shift
  "$command" -qq -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::SourceList="$place/apt.list" \
    -o Dir::State="$place/state" -o Dir::Cache="$place/cache" \
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
