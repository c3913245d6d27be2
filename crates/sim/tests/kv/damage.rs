//! A table whose file was damaged while it was closed: that is reported, so that the table
//! can be rebuilt, or nothing was lost. No wrong row comes back.

use quorate_kv::{Kv, RedbTable, TableError};
use quorate_sim::faulty_disk::SharedDisk;
use quorate_sim::random::Random;

use crate::crashes::{NAME, Script};

const TRIES: u64 = 300;

fn open(disk: &SharedDisk) -> Result<Kv<RedbTable>, TableError> {
    Kv::open(RedbTable::open(disk.clone(), NAME, 1 << 20)?)
}

/// A flipped bit, a page of zeros or of noise, a file that was cut.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    let place = random.below(bytes.len() as u64) as usize;
    let page = place / 4096 * 4096..(place / 4096 * 4096 + 4096).min(bytes.len());
    match random.below(8) {
        0 => bytes.truncate(place),
        1 => bytes[page].fill(0),
        2 => bytes[page].fill_with(|| random.next_u64() as u8),
        _ => bytes[place] ^= 1 << random.below(8),
    }
}

#[test]
fn damage_is_detected_or_harmless() {
    let mut random = Random::new(1);
    let script = Script::new(&mut random);
    let disk = SharedDisk::default();
    let mut kv = open(&disk).unwrap();
    script.run(&mut kv, &mut random).map_err(|(_, why)| why).unwrap();
    kv.save().unwrap();
    drop(kv);
    let whole = disk.inner().clone();
    let (mut detected, mut harmless) = (0, 0);
    for seed in 0..TRIES {
        let mut random = Random::new(seed);
        let mut image = whole.clone();
        image.damage(NAME, |bytes| damage(bytes, &mut random));
        match open(&SharedDisk::new(image)) {
            Err(why) => {
                assert!(why.is_corruption(), "seed {seed}: {why:?}");
                detected += 1;
            }
            Ok(kv) => {
                // Perhaps what an earlier transaction left, and then the log has the rest.
                let applied = kv.applied() as usize;
                assert_eq!(kv.hash().unwrap(), script.hashes[applied], "seed {seed}");
                harmless += 1;
            }
        }
    }
    assert!(detected > 20 && harmless > 20, "{detected} detected, {harmless} harmless");
}
