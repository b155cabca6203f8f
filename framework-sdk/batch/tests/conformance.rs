//! The batch framework through every fault script that does not need a runner, and what its users
//! are told meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mete_batch::Config;
use mete_proto::batch::v1::batch_service_client::BatchServiceClient;
use mete_proto::batch::v1::{JobSpec, ListRequest, SubmitRequest};
use mete_proto::dial::SharedDial;
use mete_proto::types::v1::Shape;
use mete_testing::conformance::{NAME, Script, conform_process_to};
use mete_testing::{Expect, Running, TestBroker, broker, conformance_of, virtual_clock};
use tonic::Status;
use tonic::transport::Channel;
use tonic_types::StatusExt;

/// Processes so far: each listens at an address of its own, and users ask the last one.
#[derive(Clone, Debug, Default)]
struct Site(Arc<AtomicU32>);

impl Site {
    /// Where users find the framework.
    fn address(&self) -> String {
        format!("batch-{}:7450", self.0.load(Ordering::SeqCst))
    }

    /// One process of the batch framework.
    fn start(&self, broker: &TestBroker) -> Running {
        self.0.fetch_add(1, Ordering::SeqCst);
        start_at(broker, &self.address())
    }

    async fn user(&self, dial: &SharedDial) -> Result<BatchServiceClient<Channel>, Status> {
        let dialed = dial.dial(&self.address()).await;
        let channel = dialed.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(BatchServiceClient::new(channel))
    }

    /// A user who asks again, under the same key, until the job is taken.
    async fn submit(&self, dial: &SharedDial, key: &str) -> String {
        loop {
            if let Ok(mut user) = self.user(dial).await
                && let Ok(answer) = user.submit(submission(key)).await
            {
                return answer.into_inner().job;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The same, on its own.
    fn start_with_user(&self, broker: &TestBroker, key: &str) -> Running {
        let running = self.start(broker);
        let (site, dial, key) = (self.clone(), broker.dial(), key.to_owned());
        tokio::spawn(async move { site.submit(&dial, &key).await });
        running
    }

    async fn code_of(&self, dial: &SharedDial, key: &str) -> Result<String, (String, String)> {
        let mut user = self.user(dial).await.expect("it listens");
        match user.submit(submission(key)).await {
            Ok(answer) => Ok(answer.into_inner().job),
            Err(status) => {
                let code = status.get_details_error_info().map(|info| info.reason);
                Err((code.unwrap_or_default(), status.message().to_owned()))
            }
        }
    }

    async fn jobs(&self, dial: &SharedDial) -> Vec<String> {
        let mut user = self.user(dial).await.expect("it listens");
        let list = user.list(ListRequest::default()).await.expect("a list");
        let rows = list.into_inner().jobs.into_iter();
        rows.map(|row| row.job).collect()
    }
}

fn start_at(broker: &TestBroker, address: &str) -> Running {
    let mut config = Config::new(vec![broker::ADDRESS.to_owned()], vec!["dev".to_owned()]);
    NAME.clone_into(&mut config.session.name);
    config.session.dial = broker.dial();
    config.clock = virtual_clock;
    let (session, running) = mete_batch::open(config, broker.listen(address)).expect("good");
    Running::of(session, running)
}

fn submission(key: &str) -> SubmitRequest {
    SubmitRequest {
        spec: Some(JobSpec {
            name: "job".to_owned(),
            role: "dev".to_owned(),
            command: vec!["true".to_owned()],
            array: "0-2".to_owned(),
            shape: Some(Shape {
                cpu_milli: 1_000,
                ..Shape::default()
            }),
            ..JobSpec::default()
        }),
        key: key.to_owned(),
        dry_run: false,
    }
}

#[tokio::test(start_paused = true)]
async fn batch_survives_every_fault_script() {
    let site = Site::default();
    let start = |broker: &TestBroker| site.start_with_user(broker, "the only job");
    conformance_of(start, Expect::until_finished(3)).await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_doubled_is_found_out() {
    let site = Site::default();
    let start = |broker: &TestBroker| site.start_with_user(broker, &site.address());
    let expect = Expect::until_finished(3);
    let why = conform_process_to(Script::ProcessDiesRunning, start, expect)
        .await
        .expect_err("six elements ran");
    assert!(why.contains("6 tasks were launched where 3"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_submit_on_a_full_disk_is_refused_in_time_and_leaves_nothing() {
    let broker = TestBroker::builder()
        .nodes("n", 1, |node| node)
        .start()
        .await;
    let site = Site::default();
    let running = site.start(&broker);
    let dial = broker.dial();
    let first = site.submit(&dial, "first").await;
    broker.fill_disk();

    let began = tokio::time::Instant::now();
    // Two at once are one, and neither is told that it was taken.
    let (one, other) = tokio::join!(site.code_of(&dial, "second"), site.code_of(&dial, "second"));
    let (code, detail) = one.expect_err("refused");
    assert_eq!(code, "DISK_FULL", "{detail}");
    assert_eq!(other.expect_err("refused").0, "DISK_FULL");
    // What was taken before stays, whatever is to be stored of it meanwhile.
    let again = site.code_of(&dial, "first").await;
    assert_eq!(again.as_ref(), Ok(&first));
    assert!(detail.contains("free space there"), "{detail}");
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(site.jobs(&dial).await, std::slice::from_ref(&first));

    // Another process does not find it either, and the same key is a new job.
    broker.empty_disk();
    running.crash();
    let _running = site.start(&broker);
    let second = site.submit(&dial, "second").await;
    assert_eq!(site.jobs(&dial).await, [second, first]);
    broker
        .until("both to finish", || broker.tasks().finished() == 6)
        .await;
    assert_eq!(broker.tasks().launched(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_submit_that_nobody_can_answer_for_is_the_same_job_when_it_comes_again() {
    let broker = TestBroker::builder()
        .nodes("n", 1, |node| node)
        .start()
        .await;
    let site = Site::default();
    let _running = site.start(&broker);
    let dial = broker.dial();
    site.submit(&dial, "first").await;
    let faults = broker.faults();
    faults.lose_replies(mete_testing::Method::StoreWrite, u32::MAX);

    let began = tokio::time::Instant::now();
    let (code, detail) = site.code_of(&dial, "second").await.expect_err("no answer");
    assert_eq!(code, "UNKNOWN", "{detail}");
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );

    faults.heal();
    let second = site.submit(&dial, "second").await;
    let third = site.submit(&dial, "second").await;
    assert_eq!(second, third);
    assert_eq!(site.jobs(&dial).await.len(), 2);
    broker
        .until("both to finish", || broker.tasks().finished() == 6)
        .await;
    assert_eq!(broker.tasks().launched(), 6);
}
