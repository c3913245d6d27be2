//! redb loses power at any moment, with any part of what was not synced left: the
//! table holds the state after some command, not before the last save, whole.

use bytes::Bytes;
use quorate_kv::{BatchConfig, Command, Kv, MemoryTable, RedbTable, TableError};
use quorate_sim::explore::Workload;
use quorate_sim::faulty_disk::SharedDisk;
use quorate_sim::random::Random;

use quorate_sim::explore::EtcdClients;

pub(crate) const NAME: &str = "kv";
const COMMANDS: u64 = 60;

fn open(disk: &SharedDisk) -> Result<Kv<RedbTable>, TableError> {
    let kv = Kv::open(RedbTable::open(disk.clone(), NAME, 1 << 20)?)?;
    Ok(kv.with_batch_config(BatchConfig::default().commands(3).durable_every(3)))
}

/// The commands of one run, and what the state is after each of them.
pub(crate) struct Script {
    pub(crate) commands: Vec<Bytes>,
    pub(crate) hashes: Vec<u32>,
}

impl Script {
    pub(crate) fn new(random: &mut Random) -> Self {
        let mut clients = EtcdClients::default();
        let commands: Vec<_> = (0..COMMANDS).map(|_| clients.command(random)).collect();
        let mut kv = Kv::open(MemoryTable::default()).unwrap();
        let mut hashes = vec![kv.hash().unwrap()];
        for (place, command) in commands.iter().enumerate() {
            let _ = kv.apply_bytes(place as u64 + 1, command).unwrap();
            hashes.push(kv.hash().unwrap());
        }
        Self { commands, hashes }
    }

    /// Runs what is missing, saving now and then, until the disk stops working.
    /// Answers how much is certainly saved.
    pub(crate) fn run(
        &self,
        kv: &mut Kv<RedbTable>,
        random: &mut Random,
    ) -> Result<u64, (u64, TableError)> {
        let mut saved = kv.applied();
        for (place, command) in self.commands.iter().enumerate().skip(saved as usize) {
            let command = Command::decode(command).unwrap();
            let _ = kv.apply(place as u64 + 1, &command).map_err(|error| (saved, error))?;
            if random.below(8) == 0 {
                kv.save().map_err(|error| (saved, error))?;
                saved = place as u64 + 1;
            }
        }
        Ok(saved)
    }
}

#[test]
fn a_table_that_lost_power_holds_a_whole_state() {
    let mut crashes_in_writes = 0;
    let mut lost = 0;
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let script = Script::new(&mut random);
        let disk = SharedDisk::default();
        let mut certain = 0;
        // Several crashes in a row, each of what the one before left.
        let mut image = disk.inner().clone();
        for _ in 0..4 {
            let disk = SharedDisk::new(image);
            disk.inner().stop_after(Some(random.below(300)));
            if let Ok(mut kv) = open(&disk) {
                check(&kv, &script, certain, seed);
                match script.run(&mut kv, &mut random) {
                    Ok(saved) => certain = certain.max(saved),
                    Err((saved, _)) => {
                        certain = certain.max(saved);
                        crashes_in_writes += 1;
                    }
                }
                // The process is gone: what it would still write never happens.
                disk.inner().stop_after(Some(0));
            }
            image = disk.inner().clone();
            image.crash(&mut random);
        }
        let disk = SharedDisk::new(image);
        let mut kv = open(&disk).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        check(&kv, &script, certain, seed);
        lost += script.commands.len() as u64 - kv.applied();
        script.run(&mut kv, &mut random).map_err(|(_, error)| error).unwrap();
        assert_eq!(kv.hash().unwrap(), script.hashes[script.commands.len()], "seed {seed}");
    }
    assert!(crashes_in_writes > 100 && lost > 100, "{crashes_in_writes} crashes, {lost} lost");
}

fn check(kv: &Kv<RedbTable>, script: &Script, certain: u64, seed: u64) {
    let applied = kv.applied();
    assert!(applied >= certain, "seed {seed}: {applied} of {certain} saved commands are left");
    assert_eq!(kv.hash().unwrap(), script.hashes[applied as usize], "seed {seed}, at {applied}");
}
