//! What stands below the arguments in a command's help and in its manual page.

pub(crate) const FIRST_STEPS: &str = "\
First steps:
  quorate demo               three members, one of them replaced while clients write
  quorate server --help      run a member of your own
  quorate status             look at a cluster
  quorate member replace -h  change who is in it

A command ends with 0 when it is done, 1 when it was refused or failed, 2 when it was asked for
in a way that cannot be meant.";

pub(crate) const ADD_EXAMPLES: &str = "\
Examples:
  quorate member add m4=http://10.0.0.4:2380
  quorate member add m5 --peer-urls http://10.0.0.5:2380 --learner";

pub(crate) const REPLACE_EXAMPLES: &str = "\
Example:
  quorate member replace m1 m4=http://10.0.0.4:2380";

pub(crate) const SET_EXAMPLES: &str = "\
Examples:
  quorate member set m1 m2 m3                             these three, and nobody else
  quorate member set m1 m2 m4=http://10.0.0.4:2380        m4 is new
  quorate member set m1 m2 m3 --learners m4               m4 keeps up, and has no vote";

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
Run a member of a cluster that speaks etcd's API. Takes etcd's flags, ETCD_* variables and
--config-file; a flag beats its variable, a file replaces both. The most used ones:

  --name NAME                         of this member [default]
  --data-dir DIR                      where it keeps its data [NAME.etcd]
  --listen-client-urls URLS           where clients connect [http://localhost:2379]
  --advertise-client-urls URLS        the same, as others see it
  --listen-peer-urls URLS             where other members connect [http://localhost:2380]
  --initial-advertise-peer-urls URLS  the same, as others see it
  --initial-cluster NAME=URL,...      the first members, or those there are
  --initial-cluster-state STATE       new, or existing to join [new]
  --initial-cluster-token TEXT        so that clusters on the same addresses stay apart
  --listen-metrics-urls URLS          /metrics and /health also there
  --table KIND                        the data is in memory, or in a file by redb [memory]
  --auto-promote                      learners vote as soon as they have caught up
  --learner-reads                     learners answer linearizable reads and watches";
