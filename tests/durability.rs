//! The master is killed with SIGKILL at random moments under load: what it acknowledged is there.
//!
//! 20 times, or 100 with METE_LONG=1. Jobs are submitted and records are written without a pause;
//! an answer that came is an acknowledgement, and whatever it named must be there after the
//! restart, as it was.

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mete_proto::batch::v1::batch_service_client::BatchServiceClient;
use mete_proto::batch::v1::{JobSpec, SubmitRequest};
use mete_proto::types::v1::Shape;
use mete_sdk::store::{Store, Write};
use mete_sdk::{Session, SessionConfig};
use support::framework::runtime;
use support::{Dice, Site};

/// What was acknowledged.
#[derive(Debug, Default)]
struct Acknowledged {
    jobs: Mutex<BTreeSet<String>>,
    records: Mutex<BTreeSet<(String, String)>>,
    /// A refusal that no restart explains.
    refused: Mutex<Option<tonic::Status>>,
    over: AtomicBool,
}

impl Acknowledged {
    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn check_refusals(&self) {
        let refused = self.refused.lock().expect("not poisoned").clone();
        assert!(refused.is_none(), "a good job was refused: {refused:?}");
    }

    fn counts(&self) -> (usize, usize) {
        let jobs = self.jobs.lock().expect("not poisoned").len();
        (jobs, self.records.lock().expect("not poisoned").len())
    }
}

fn rounds() -> u32 {
    let long = std::env::var("METE_LONG").is_ok_and(|long| long != "0");
    if long { 100 } else { 20 }
}

/// Submits jobs until it is over; whatever fails is simply not acknowledged.
async fn submit(address: String, name: String, acknowledged: Arc<Acknowledged>) {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
    let channel = endpoint.expect("an address").connect_lazy();
    let mut batch = BatchServiceClient::new(channel);
    let mut number = 0_u64;
    while acknowledged.goes_on() {
        number += 1;
        let spec = JobSpec {
            name: name.clone(),
            command: vec!["true".to_owned()],
            shape: Some(Shape {
                cpu_milli: 100,
                ..Shape::default()
            }),
            user: "tester".to_owned(),
            ..JobSpec::default()
        };
        let request = SubmitRequest {
            spec: Some(spec),
            key: format!("{name}-{number}"),
            dry_run: false,
        };
        match tokio::time::timeout(Duration::from_secs(5), batch.submit(request)).await {
            Ok(Ok(answer)) => {
                let job = answer.into_inner().job;
                assert!(job.starts_with(&name), "{job} for {name}");
                let fresh = acknowledged
                    .jobs
                    .lock()
                    .expect("not poisoned")
                    .insert(job.clone());
                assert!(fresh, "{job} was given to two submits");
            }
            Ok(Err(status)) if status.code() == tonic::Code::InvalidArgument => {
                acknowledged
                    .refused
                    .lock()
                    .expect("not poisoned")
                    .replace(status);
            }
            Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Writes records until it is over.
async fn write(store: Store, name: String, acknowledged: Arc<Acknowledged>) {
    let mut number = 0_u64;
    while acknowledged.goes_on() {
        number += 1;
        let (key, value) = (
            format!("{name}/{number}"),
            format!("value {number} of {name}"),
        );
        let write = Write::new().put(key.as_bytes(), value.as_bytes());
        if let Ok(Ok(revision)) =
            tokio::time::timeout(Duration::from_secs(20), store.write(write)).await
        {
            assert!(revision > 0, "a stored record has a revision");
            acknowledged
                .records
                .lock()
                .expect("not poisoned")
                .insert((key, value));
        }
    }
}

async fn check_records(store: &Store, acknowledged: &Acknowledged) {
    // Before the reading: what is acknowledged later need not be in it.
    let wanted = acknowledged.records.lock().expect("not poisoned").clone();
    let records = store
        .list(b"".as_slice())
        .await
        .expect("the store can be read");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("as it was written");
    let there: BTreeSet<(String, String)> = records
        .into_iter()
        .map(|record| (text(record.key), text(record.value)))
        .collect();
    let lost: Vec<_> = wanted.difference(&there).collect();
    assert!(
        lost.is_empty(),
        "{} acknowledged records are lost: {lost:?}",
        lost.len()
    );
}

/// The batch framework is started anew, so that what it says comes from the broker's store.
fn check_jobs(site: &mut Site, acknowledged: &Acknowledged) {
    site.restart("batch");
    site.wait_for_batch();
    // Before the list: what is acknowledged later need not be in it.
    let wanted = acknowledged.jobs.lock().expect("not poisoned").clone();
    let list = site.json(&["batch", "list", "-A"]);
    let there: BTreeSet<&str> = list.texts("job").into_iter().collect();
    let lost: Vec<_> = wanted
        .iter()
        .filter(|job| !there.contains(job.as_str()))
        .collect();
    assert!(
        lost.is_empty(),
        "{} acknowledged jobs are lost: {lost:?}",
        lost.len()
    );
    assert_eq!(there.len(), list.items().len(), "no job is there twice");
}

#[test]
fn nothing_acknowledged_is_lost_when_the_master_is_killed_again_and_again() {
    let mut dice = Dice::new();
    let mut site = Site::new();
    site.start_master();
    // Its own address for its clients, the same over restarts.
    let serving = format!("127.0.0.1:{}", support::free_port());
    site.spawn(
        "batch",
        &["batch", "start", "--role", "batch", "--listen", &serving],
    );
    site.wait_for_batch();
    let acknowledged = Arc::new(Acknowledged::default());
    let runtime = runtime();
    let (session, mut events) = {
        let _inside = runtime.enter();
        let config = SessionConfig::new(vec![site.address().to_owned()], "keeper", "dev");
        Session::open(config).expect("a good configuration")
    };
    runtime.spawn(async move { while events.next().await.is_some() {} });
    let store = session.store();
    for number in 0..2 {
        let name = format!("job{number}");
        runtime.spawn(submit(serving.clone(), name, Arc::clone(&acknowledged)));
        let name = format!("record{number}");
        runtime.spawn(write(store.clone(), name, Arc::clone(&acknowledged)));
    }

    let mut before = (0, 0);
    for round in 1..=rounds() {
        // Under load: something is acknowledged between two deaths.
        support::until("something to be acknowledged", || {
            acknowledged.check_refusals();
            let now = acknowledged.counts();
            support::holds(now.0 > before.0 && now.1 > before.1, || {
                format!("{before:?} {now:?}")
            })
        });
        std::thread::sleep(Duration::from_micros(dice.below(300_000)));
        site.kill("master");
        before = acknowledged.counts();
        site.restart("master");
        site.wait_for_master();
        runtime.block_on(check_records(&store, &acknowledged));
        if round % 10 == 0 {
            check_jobs(&mut site, &acknowledged);
        }
    }
    acknowledged.over.store(true, Ordering::Relaxed);
    runtime.block_on(check_records(&store, &acknowledged));
    check_jobs(&mut site, &acknowledged);
    let (jobs, records) = acknowledged.counts();
    eprintln!(
        "{} kills, {jobs} jobs and {records} records acknowledged, none lost",
        rounds()
    );
}
