//! The text below the options in a command's help and manual page.

pub(crate) const FIRST_STEPS: &str = "\
First steps:
  quorate demo               run three members and replace the leader under load
  quorate server --help      run a member of your own
  quorate put greeting hello write a key; 'quorate get greeting' reads it
  quorate status             check the health of a cluster
  quorate member replace -h  replace a member

Exit codes: 0 success, 1 the request was refused or failed, 2 invalid arguments, 3 the member of
this server was removed from its cluster, 130 interrupted.";

pub(crate) const DEMO_EXAMPLES: &str = "\
Examples:
  quorate demo                  full screen on a terminal, lines elsewhere
  quorate demo --beside etcd    the same on etcd, with a table of both at the end
  quorate demo --once --tls     exit at the end; all connections encrypted";

pub(crate) const ADD_EXAMPLES: &str = "\
Examples:
  quorate member add m4=http://10.0.0.4:2380
  quorate member add m5 --peer-urls http://10.0.0.5:2380 --learner";

pub(crate) const REPLACE_EXAMPLES: &str = "\
Example:
  quorate member replace m1 m4=http://10.0.0.4:2380";

pub(crate) const SET_EXAMPLES: &str = "\
Examples:
  quorate member set m1 m2 m3                        exactly these three voters
  quorate member set m1 m2 m4=http://10.0.0.4:2380   m4 is new
  quorate member set m1 m2 m3 --learners m4          m4 is a learner";

pub(crate) const PLAN_EXAMPLES: &str = "\
Example:
  quorate member plan m2 m3 m4=http://10.0.0.4:2380";

pub(crate) const RESTORE_EXAMPLES: &str = "\
Example, for the first of three members:
  quorate snapshot restore backup.db --name m1 --data-dir /var/lib/quorate-new \\
    --initial-cluster m1=http://10.0.0.1:2380,m2=http://10.0.0.2:2380,m3=http://10.0.0.3:2380 \\
    --initial-advertise-peer-urls http://10.0.0.1:2380 \\
    --bump-revision 1000000000 --mark-compacted";

pub(crate) const IMPORT_EXAMPLES: &str = "\
Example, for the first of three members:
  quorate import --data-dir /var/lib/etcd --name m1 --new-data-dir /var/lib/quorate \\
    --initial-cluster m1=http://10.0.0.1:2380,m2=http://10.0.0.2:2380,m3=http://10.0.0.3:2380 \\
    --initial-advertise-peer-urls http://10.0.0.1:2380";

pub(crate) const RECOVER_EXAMPLES: &str = "\
Examples:
  quorate recover --data-dir /var/lib/quorate
  quorate recover --data-dir /var/lib/quorate \\
    --members m1=http://10.0.0.1:2380,m2=http://10.0.0.2:2380,m3=http://10.0.0.3:2380";

pub(crate) const PUT_EXAMPLES: &str = "\
Examples:
  quorate put greeting hello
  quorate put greeting < file                   the value is the content of the file
  quorate put --lease 694d71ddacfda227 k v      k is deleted when the lease ends
  quorate put -- key -1                         a value that begins with a hyphen";

pub(crate) const GET_EXAMPLES: &str = "\
Examples:
  quorate get greeting
  quorate get --prefix users/ --keys-only
  quorate get a f                               all keys from a to f, without f
  quorate get greeting --rev 5 -w json          the key as of revision 5";

pub(crate) const DELETE_EXAMPLES: &str = "\
Examples:
  quorate del greeting
  quorate del --prefix users/";

pub(crate) const WATCH_EXAMPLES: &str = "\
Examples:
  quorate watch greeting
  quorate watch --prefix users/ --rev 1         with all events since revision 1
  quorate watch greeting -- sh -c 'echo $ETCD_WATCH_KEY is $ETCD_WATCH_VALUE'

If the member that serves the watch is lost, the watch continues at another endpoint, without a
missing or repeated event.";

pub(crate) const TXN_EXAMPLES: &str = "\
Standard input has three parts with an empty line after each: conditions, what is done if all of
them hold, and what is done otherwise. A condition compares value, version, create, mod or lease
of a key with =, !=, < or >.

Example:
  quorate txn <<'END'
  value(\"greeting\") = \"hello\"
  version(\"greeting\") > \"0\"

  put greeting \"good morning\"
  get greeting

  get greeting

  END";

pub(crate) const LEASE_EXAMPLES: &str = "\
Examples:
  quorate lease grant 60
  quorate lease keep-alive 694d71ddacfda227
  quorate lease timetolive 694d71ddacfda227 --keys";
