#!/bin/sh
# git asks here for the user and the password of an https repository: the token is on no command line and in no URL.
case $1 in
  Username*) echo git ;;
  *) cat "$CREDENTIALS_DIRECTORY/token" ;;
esac
