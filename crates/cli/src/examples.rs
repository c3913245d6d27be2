//! The text below the options in a command's help and manual page.

pub(crate) const FIRST_STEPS: &str = "\
First steps:
  quorate demo               run three members and replace one of them under load
  quorate server --help      run a member of your own
  quorate status             check the health of a cluster
  quorate member replace -h  replace a member

Exit codes: 0 success, 1 the request was refused or failed, 2 invalid arguments.";

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

pub(crate) const RECOVER_EXAMPLES: &str = "\
Examples:
  quorate recover --data-dir /var/lib/quorate
  quorate recover --data-dir /var/lib/quorate \\
    --members m1=http://10.0.0.1:2380,m2=http://10.0.0.2:2380,m3=http://10.0.0.3:2380";

pub(crate) const SERVER_HELP: &str = "\
Run a member of a cluster with etcd's API. Takes etcd's flags, ETCD_* variables and
--config-file. A flag takes precedence over its variable; a config file replaces both.
The most used flags:

  --name NAME                         name of this member [default]
  --data-dir DIR                      data directory [NAME.etcd]
  --listen-client-urls URLS           addresses to listen on for clients [http://localhost:2379]
  --advertise-client-urls URLS        the client addresses that clients should use
  --listen-peer-urls URLS             addresses to listen on for members [http://localhost:2380]
  --initial-advertise-peer-urls URLS  the peer addresses that other members should use
  --initial-cluster NAME=URL,...      the initial members, or the present ones when joining
  --initial-cluster-state STATE       new, or existing to join a cluster [new]
  --initial-cluster-token TEXT        distinguishes clusters that use the same addresses
  --listen-metrics-urls URLS          additional addresses for /metrics and /health
  --table KIND                        where the data is kept: memory, or redb for a file [memory]
  --auto-promote                      promote learners as soon as they have caught up
  --learner-reads                     learners serve linearizable reads and watches";
