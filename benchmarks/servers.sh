# For scripts that start servers: source it. Each server leads a session of its own, whose number stands in
# FOLDER/NAME.session, so that its workers end with it.
end_servers() { # FOLDER
  local signal session
  for signal in TERM KILL; do
    for session in "$1"/*.session; do [ -e "$session" ] && pkill -"$signal" -s "$(cat "$session")"; done
    sleep 2
  done
  rm -f "$1"/*.session
}
answers() { "${PYTHON:-python3}" -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=2)' "$1" 2> /dev/null; } # URL
