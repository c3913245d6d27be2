use super::*;

fn disk_with(name: &str, bytes: &[u8]) -> (FaultyDisk, FaultyFile) {
    let mut disk = FaultyDisk::new();
    let file = disk.create(name, 0).unwrap();
    disk.write_at(&file, 0, bytes).unwrap();
    disk.sync(&file).unwrap();
    disk.sync_dir().unwrap();
    (disk, file)
}

fn images(disk: &FaultyDisk) -> Vec<Vec<(String, Vec<u8>)>> {
    let owned = |(name, bytes): (&str, &[u8])| (name.to_string(), bytes.to_vec());
    disk.crash_images().map(|image| image.files().map(owned).collect()).collect()
}

#[test]
fn unsynced_sectors_survive_in_any_subset() {
    let (mut disk, file) = disk_with("a", &[0; 3 * SECTOR_BYTES]);
    disk.write_at(&file, 100, &[1; 2 * SECTOR_BYTES]).unwrap();
    assert_eq!(images(&disk).len(), 8);
    disk.sync(&file).unwrap();
    assert_eq!(images(&disk).len(), 1);
}

#[test]
fn a_sector_written_twice_has_three_versions() {
    let (mut disk, file) = disk_with("a", &[0; 8]);
    disk.write_at(&file, 0, &[1]).unwrap();
    disk.write_at(&file, 1, &[2]).unwrap();
    let versions: Vec<Vec<u8>> =
        images(&disk).into_iter().map(|files| files[0].1.clone()).collect();
    assert_eq!(versions.len(), 3);
    assert!(
        versions.iter().all(|bytes| bytes[..2] != [0, 2]),
        "the second write includes the first"
    );
}

#[test]
fn names_are_durable_after_a_directory_sync() {
    let mut disk = FaultyDisk::new();
    let file = disk.create("new", 4).unwrap();
    disk.sync(&file).unwrap();
    disk.rename("new", "name").unwrap();
    let images_before_sync = images(&disk);
    let names: Vec<Vec<&str>> = images_before_sync
        .iter()
        .map(|files| files.iter().map(|(name, _)| name.as_str()).collect())
        .collect();
    assert_eq!(names, [vec![], vec!["name"], vec!["new"]]);
    disk.sync_dir().unwrap();
    assert_eq!(images(&disk).len(), 1);
}

#[test]
fn a_truncation_may_be_undone_by_a_crash() {
    let (mut disk, file) = disk_with("a", &[7; 2000]);
    disk.set_len(&file, 10).unwrap();
    let lens: Vec<usize> = images(&disk).iter().map(|files| files[0].1.len()).collect();
    assert_eq!(lens, [2000, 10]);
    assert_eq!(images(&disk)[0][0].1, [7; 2000]);
}

#[test]
fn a_failed_sync_drops_the_unsynced_data() {
    let (mut disk, file) = disk_with("a", &[0; 8]);
    disk.write_at(&file, 0, &[1]).unwrap();
    disk.inject(Fault::SyncError, 0);
    assert!(disk.sync(&file).is_err());
    assert!(disk.sync(&file).is_ok(), "a retry reports success");
    assert_eq!(disk.files().next().unwrap().1, [0; 8]);
}

#[test]
fn after_a_failed_sync_memory_and_disk_may_differ() {
    let (mut disk, file) = disk_with("a", &[0; 8]);
    disk.write_at(&file, 0, &[1]).unwrap();
    disk.inject(Fault::SyncErrorUnseen, 0);
    assert!(disk.sync(&file).is_err());
    assert!(disk.sync(&file).is_ok());
    assert_eq!(disk.files().next().unwrap().1[0], 1, "memory has the new data");
    let mut crashed = disk.clone();
    crashed.crash(&mut Random::new(1));
    assert_eq!(crashed.files().next().unwrap().1[0], 0, "the disk never got the data");
    disk.write_at(&file, 0, &[1]).unwrap();
    disk.sync(&file).unwrap();
    disk.crash(&mut Random::new(1));
    assert_eq!(disk.files().next().unwrap().1[0], 1, "a second write makes it durable");
}

#[test]
fn a_removed_file_is_readable_while_it_is_open() {
    let (mut disk, file) = disk_with("a", b"abc");
    disk.remove("a").unwrap();
    disk.sync_dir().unwrap();
    let mut bytes = [0; 3];
    disk.read_at(&file, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abc");
    drop(file);
    disk.sync_dir().unwrap();
    assert!(disk.inodes.is_empty());
}

#[test]
fn injected_faults_occur_and_are_counted() {
    let (mut disk, file) = disk_with("a", &[0; 8]);
    disk.inject(Fault::WriteError, 1);
    assert!(disk.write_at(&file, 0, &[1]).is_ok());
    assert!(disk.write_at(&file, 0, &[2]).is_err());
    assert!(disk.write_at(&file, 0, &[3]).is_ok());
    disk.set_capacity(Some(100));
    assert_eq!(disk.write_at(&file, 90, &[0; 20]).unwrap_err().raw_os_error(), Some(NO_SPACE));
    disk.inject(Fault::ShortWrite, 0);
    assert!(disk.write_at(&file, 0, &[9, 9]).is_err());
    assert_eq!(disk.files().next().unwrap().1[..2], [9, 0]);
    let counts: Vec<(Fault, u64)> = disk.fault_counts().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counts, [(Fault::WriteError, 1), (Fault::ShortWrite, 1)]);
}

#[test]
fn stale_reads_return_the_previous_version() {
    let (mut disk, file) = disk_with("a", &[1; 8]);
    disk.write_at(&file, 0, &[2; 8]).unwrap();
    disk.sync(&file).unwrap();
    disk.inject(Fault::StaleRead, 0);
    let mut bytes = [0; 4];
    disk.read_at(&file, 2, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 4]);
}

#[test]
fn a_lying_sync_keeps_nothing_until_the_disk_is_healed() {
    let (mut disk, file) = disk_with("a", &[0; SECTOR_BYTES]);
    disk.lie_about_syncs();
    disk.inject(Fault::SyncError, 0);
    disk.write_at(&file, 0, &[1]).unwrap();
    disk.sync(&file).unwrap();
    disk.sync_dir().unwrap();
    assert_eq!(images(&disk).len(), 2);
    disk.heal();
    assert!(!disk.is_lying());
    assert_eq!(images(&disk).len(), 1);
}
