//! The real store: the contract on a real disk, rotation, and every refusal as a sentence.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::store::EntryKind;
use crate::store::contract::{life, live};

const CLUSTER: ClusterId = *b"sled store tests";

fn settings(dir: &Path) -> Settings {
    Settings {
        cache_bytes: 16 << 20,
        rotate_above_bytes: 1 << 20,
        rotate_above_live_factor: 2,
        reserve_bytes: 1 << 16,
        ..Settings::new(&dir.join("store"))
    }
}

fn open(dir: &Path) -> Result<SledStore, OpenError> {
    let settings = settings(dir);
    if SledStore::exists(&settings.dir)? {
        SledStore::open(settings)
    } else {
        SledStore::found(settings, CLUSTER, 1)
    }
}

fn entries(indexes: std::ops::RangeInclusive<u64>, size: usize) -> Vec<Entry> {
    let kind = EntryKind::Command;
    let data = |index: u64| {
        index
            .to_le_bytes()
            .iter()
            .copied()
            .cycle()
            .take(size)
            .collect()
    };
    indexes
        .map(|index| Entry {
            index,
            term: 1,
            kind,
            data: data(index),
        })
        .collect()
}

const HARD: HardState = HardState {
    term: 1,
    vote: 1,
    commit: 0,
};

/// A store with 60 turns of varied sizes, closed well.
fn filled(dir: &Path) -> Vec<Entry> {
    let mut store = open(dir).expect("an empty directory");
    let mut all = Vec::new();
    let mut next = 1;
    for turn in 0..60_u64 {
        let batch = entries(
            next..=next + turn % 7,
            50 + usize::try_from(turn).expect("small") * 20,
        );
        store.append(&batch, &HARD).expect("room");
        next += batch.len() as u64;
        all.extend(batch);
    }
    store.close().expect("room");
    all
}

/// The generation that CURRENT names.
fn live_generation(dir: &Path) -> PathBuf {
    let store = dir.join("store");
    let current = fs::read_to_string(store.join("CURRENT")).expect("a whole store");
    store.join(current.trim_end())
}

fn sentence(opened: Result<SledStore, OpenError>) -> String {
    opened.map_or_else(|error| error.to_string(), |_| "it opened".to_owned())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    #[test]
    fn every_life_keeps_the_contract(acts in life()) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        live(&acts, || open(dir.path()));
    }
}

#[test]
fn a_grown_file_is_replaced_by_a_smaller_generation_with_the_same_content() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut store = open(dir.path()).expect("an empty directory");
    let mut last = 0;
    let mut largest = 0;
    while store.generation() < 3 {
        assert!(
            last < 60_000,
            "the file has {} bytes and never rotates",
            store.file_bytes()
        );
        store
            .append(&entries(last + 1..=last + 100, 300), &HARD)
            .expect("room");
        last += 100;
        largest = largest.max(store.file_bytes());
        if last % 1_000 == 0 {
            let at = Applied {
                index: last - 50,
                term: 1,
                membership: Vec::new(),
            };
            let writer = store.snapshot_writer(&at, Origin::Made).expect("room");
            let manifest = writer.finish(0).expect("room");
            store.publish_snapshot(&manifest).expect("room");
            store.trim(last - 49).expect("room");
            store.tidy().expect("room");
        }
    }
    assert!(
        store.file_bytes() < largest,
        "{} of {largest}",
        store.file_bytes()
    );
    let incarnation = store.identity().incarnation;
    drop(store);

    let mut store = open(dir.path()).expect("it opens");
    let loaded = store.take_loaded().expect("new");
    assert_eq!(loaded.entries.last().map(|entry| entry.index), Some(last));
    let expected = entries(last - 49..=last, 300);
    let found: Vec<_> = loaded
        .entries
        .into_iter()
        .filter(|e| e.index > last - 50)
        .collect();
    assert_eq!(found, expected);
    assert_eq!(loaded.identity.incarnation, incarnation + 1);
    let generations = fs::read_dir(dir.path().join("store"))
        .expect("it is there")
        .filter(|entry| {
            let name = entry.as_ref().expect("it is there").file_name();
            name.to_string_lossy().starts_with("gen-")
        });
    assert_eq!(generations.count(), 1);
}

#[test]
fn a_second_master_on_one_directory_is_told_so() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let _first = open(dir.path()).expect("an empty directory");

    assert!(sentence(open(dir.path())).contains("another master holds it"));
}

#[test]
fn a_missing_and_a_foreign_directory_are_told_apart_and_left_alone() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let missing = sentence(SledStore::open(settings(dir.path())));
    assert!(missing.contains("there is none"), "{missing}");
    assert!(!dir.path().join("store").exists());

    fs::create_dir(dir.path().join("store")).expect("room");
    fs::write(dir.path().join("store/thesis.tex"), "precious").expect("room");
    let foreign = sentence(open(dir.path()));
    assert!(
        foreign.contains("not a mete store") && foreign.contains("thesis.tex"),
        "{foreign}"
    );
    let left: Vec<_> = fs::read_dir(dir.path().join("store"))
        .expect("it is there")
        .collect();
    assert_eq!(left.len(), 1);

    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let on_a_file = SledStore::open(Settings::new(file.path()));
    assert!(sentence(on_a_file).contains("not a mete store"));
}

#[test]
fn founding_where_a_store_is_names_whose_it_is() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    drop(open(dir.path()).expect("an empty directory"));

    let text = sentence(SledStore::found(settings(dir.path()), [1; 16], 9));

    assert!(
        text.contains("a store of cluster 736c6564") && text.contains("node 1"),
        "{text}"
    );
}

#[test]
fn a_lost_or_wrong_current_is_refused_not_founded_anew() {
    for wrong in [None, Some("gen-000044\n"), Some("generation one"), Some("")] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        filled(dir.path());
        let generation = live_generation(dir.path());
        let current = dir.path().join("store/CURRENT");
        match wrong {
            Some(text) => fs::write(&current, text).expect("room"),
            None => fs::remove_file(&current).expect("it was there"),
        }

        assert!(sentence(open(dir.path())).contains("damaged"), "{wrong:?}");
        assert!(generation.is_dir());
    }
}

#[test]
fn a_note_of_what_was_flushed_that_is_lost_refuses_the_start_until_a_person_accepts_the_log() {
    for lost in [None, Some([].as_slice()), Some(&[0; 524])] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let expected = filled(dir.path());
        let note = dir.path().join("store/FLUSHED");
        match lost {
            Some(bytes) => fs::write(&note, bytes).expect("room"),
            None => fs::remove_file(&note).expect("it was there"),
        }
        let before = copy_of(dir.path());
        let text = sentence(open(dir.path()));
        let last = format!("up to index {}", expected.len());
        assert!(text.contains("FLUSHED") && text.contains(&last), "{text}");
        assert!(
            copy_of(dir.path()) == before,
            "a refused start changes nothing"
        );

        let accept = text.rsplit_once("echo '").expect("the way out").1;
        let (word, _) = accept.split_once('\'').expect("a word");
        fs::write(&note, format!("{word}\n")).expect("room");
        let mut store = open(dir.path()).expect("accepted");
        assert_eq!(store.take_loaded().expect("new").entries, expected);
        drop(store);
        open(dir.path()).expect("the note is whole again");
    }
}

#[test]
fn a_store_whose_note_was_never_written_since_it_was_founded_opens() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    drop(open(dir.path()).expect("an empty directory"));
    let mut store = open(dir.path()).expect("nothing was flushed, and that is known");
    assert!(store.take_loaded().expect("new").entries.is_empty());
}

#[test]
fn what_the_engine_says_of_damage_is_a_detail_below_words_for_readers() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    filled(dir.path());
    let log = live_generation(dir.path()).join("db");
    let mut bytes = fs::read(&log).expect("it is there");
    let used = bytes.iter().rposition(|byte| *byte != 0).expect("used");
    for byte in bytes.iter_mut().take(used / 2 + 600).skip(used / 2) {
        *byte ^= 0x5a;
    }
    fs::write(&log, bytes).expect("room");
    let error = open(dir.path()).expect_err("damage in the middle");
    let text = error.to_string();
    assert!(text.contains("it is damaged: "), "{text}");
    let leaked = ["Corruption", "DiskPtr", "panic", "index 0", "backtrace"];
    assert!(!leaked.iter().any(|word| text.contains(word)), "{text}");

    // And one that the engine itself finds.
    fs::write(live_generation(dir.path()).join("conf"), "no configuration").expect("room");
    let error = open(dir.path()).expect_err("damage");
    let text = error.to_string();
    assert!(
        text.contains("how far the log is good is not known"),
        "{text}"
    );
    assert!(!leaked.iter().any(|word| text.contains(word)), "{text}");
    let below = std::error::Error::source(&error).map(ToString::to_string);
    let below = below.expect("the detail is kept");
    assert!(below.starts_with("the storage engine said: "), "{below}");
}

#[test]
fn the_size_on_disk_counts_log_and_snapshots_and_not_the_reserve() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    filled(dir.path());
    let store = open(dir.path()).expect("a whole store");
    let before = store.disk_bytes();
    let log = fs::metadata(live_generation(dir.path()).join("db")).expect("it is there");
    assert!(log.len() > 0 && before > 0);
    let snapshot = dir.path().join("store/snap-x");
    fs::write(&snapshot, vec![7_u8; 1 << 20]).expect("room");
    assert!(
        store.disk_bytes() >= before + (1 << 20),
        "a snapshot counts"
    );
    fs::write(dir.path().join("store/RESERVE"), vec![7_u8; 4 << 20]).expect("room");
    assert!(
        store.disk_bytes() < before + (4 << 20),
        "the reserve does not"
    );
}

#[test]
fn side_files_refuse_the_start() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    filled(dir.path());
    // One far above anything real, so that the engine's own cleaning does not take it for its own.
    let blob = live_generation(dir.path()).join("blobs/1");
    fs::write(blob, "never synced").expect("room");

    assert!(sentence(open(dir.path())).contains("side files"));
}

#[test]
fn a_live_snapshot_that_is_gone_or_changed_refuses_the_start() {
    for gone in [true, false] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut store = open(dir.path()).expect("an empty directory");
        store.append(&entries(1..=5, 10), &HARD).expect("room");
        let at = Applied {
            index: 5,
            term: 1,
            membership: Vec::new(),
        };
        let manifest = store
            .snapshot_writer(&at, Origin::Made)
            .expect("room")
            .finish(0)
            .expect("room");
        store.publish_snapshot(&manifest).expect("room");
        drop(store);
        let path = dir.path().join("store").join(&manifest.file);
        if gone {
            fs::remove_file(&path).expect("it was there");
        } else {
            let mut bytes = fs::read(&path).expect("it is there");
            bytes[30] ^= 1;
            fs::write(&path, bytes).expect("room");
        }

        let text = sentence(open(dir.path()));
        assert!(
            text.contains("damaged") && text.contains(&manifest.file),
            "{text}"
        );
    }
}

#[test]
fn a_disk_without_room_says_how_much_is_wanted() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let greedy = Settings {
        reserve_bytes: u64::MAX / 4,
        ..settings(dir.path())
    };

    let text = sentence(SledStore::found(greedy, CLUSTER, 1));

    assert!(text.contains("are needed to start and compact"), "{text}");
}

#[test]
fn below_the_reserve_space_is_low_and_the_reserve_is_real() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = open(dir.path()).expect("an empty directory");
    assert!(!store.space_low());
    let reserve = dir.path().join("store/RESERVE");
    assert_eq!(
        fs::metadata(reserve).map(|file| file.len()).ok(),
        Some(1 << 16)
    );

    assert!(Reserve::new(dir.path(), u64::MAX).space_low());
}

#[test]
fn an_unfinished_recovery_snapshot_of_the_engine_is_no_damage() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let expected = filled(dir.path());
    let left = live_generation(dir.path()).join("snap.FFFFFFFFFFFFFFFF.generating");
    fs::write(&left, "torn").expect("room");

    let mut store = open(dir.path()).expect("nothing depends on it");

    assert_eq!(store.take_loaded().expect("new").entries, expected);
    assert!(!left.exists());
    drop(store);
    // The same without room for a copy, where the generation itself is opened.
    let again = live_generation(dir.path());
    fs::write(again.join("snap.FFFFFFFFFFFFFFFF.generating"), "torn").expect("room");
    let (generation, records) = Generation::open(&again, 16 << 20).expect("it opens in place");
    assert!(records.len() >= 60 && generation.file_bytes() > 0);
}

#[test]
fn a_refused_store_stays_exactly_as_it_was_found() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    filled(dir.path());
    let db = live_generation(dir.path()).join("db");
    let mut bytes = fs::read(&db).expect("it is there");
    bytes[3_000..9_000].fill(0xa5);
    fs::write(&db, bytes).expect("room");
    let before = copy_of(dir.path());

    let text = sentence(open(dir.path()));

    assert!(text.contains("it is damaged"), "{text}");
    assert_eq!(copy_of(dir.path()), before);
}

#[test]
fn a_founding_that_did_not_finish_is_begun_anew() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    drop(open(dir.path()).expect("an empty directory"));
    let store = dir.path().join("store");
    fs::remove_file(store.join("CURRENT")).expect("it was there");
    fs::write(store.join("FOUNDING"), "").expect("room");

    let mut store = open(dir.path()).expect("it founds again");

    assert_eq!(store.take_loaded().expect("new").identity.incarnation, 1);
}

/// Every file's bytes, by path.
fn copy_of(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(&next).expect("it is there") {
            let path = entry.expect("it is there").path();
            if path.is_dir() {
                dirs.push(path);
            } else if path
                .file_name()
                .is_some_and(|name| name != "RESERVE" && name != "LOCK")
            {
                files.insert(path.clone(), fs::read(&path).expect("it is there"));
            }
        }
    }
    files
}

/// Flips one bit per run in every kind of file: the store opens with the whole content, or says no.
/// Never is anything missing or changed without a word.
#[test]
fn a_flipped_bit_is_harmless_or_refused_but_never_silent() {
    let original = tempfile::tempdir().expect("a temporary directory");
    let expected = filled(original.path());
    let files = copy_of(original.path());
    let (mut harmless, mut refused) = (0, 0);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).expect("31 bits") % below
    };
    let paths: Vec<&PathBuf> = files
        .keys()
        .filter(|path| !files[*path].is_empty())
        .collect();
    for run in 0..60 {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (path, bytes) in &files {
            let to = dir
                .path()
                .join(path.strip_prefix(original.path()).expect("inside"));
            fs::create_dir_all(to.parent().expect("inside")).expect("room");
            fs::write(to, bytes).expect("room");
        }
        // Most flips go to the data, some to the small files.
        let path = if run % 4 == 0 {
            paths[random(paths.len())]
        } else {
            paths
                .iter()
                .max_by_key(|path| files[**path].len())
                .expect("there are files")
        };
        let mut bytes = files[path].clone();
        let written = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
        bytes[random(written)] ^= 1 << random(8);
        fs::write(
            dir.path()
                .join(path.strip_prefix(original.path()).expect("inside")),
            bytes,
        )
        .expect("room");

        match open(dir.path()) {
            Ok(mut store) => {
                let loaded = store.take_loaded().expect("new");
                assert_eq!(
                    loaded.entries,
                    expected,
                    "silent damage by {}",
                    path.display()
                );
                assert_eq!(loaded.hard, HARD);
                harmless += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(
        refused > 0 && harmless + refused == 60,
        "{refused} refused, {harmless} harmless"
    );
}
