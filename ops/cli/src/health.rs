//! `postrider health`: whether mail goes out; what `GET /v1/platform/health` answers, from here.

use std::process::ExitCode;

use ingress::api::platform::{HealthCheck, HealthReport, HealthStatus};
use serde_json::{Value, json};

use crate::{
    invocation,
    operator::{self, ServerArgs},
};

/// Looks at the platform. Ends with 1 when sending is impaired.
pub async fn run(servers: ServerArgs) -> anyhow::Result<ExitCode> {
    let (pool, bus) = (servers.database.pool()?, servers.bus.connect_as_any().await?);
    let report = HealthReport::of(&pool, &bus).await;
    if invocation::wants_json() {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(if report.overall == HealthStatus::Crit { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(report: &HealthReport) {
    let row =
        |check: &HealthCheck| json!({"check": check.id, "status": check.status, "observation": check.observation});
    let rows: Vec<Value> = report.checks.iter().map(row).collect();
    operator::print(&rows, &["check", "status", "observation"]);
    for check in report.checks.iter().filter(|check| check.status != HealthStatus::Ok) {
        println!("\n{}: {}", check.id, check.cause.as_deref().unwrap_or(&check.observation));
        for step in &check.fix {
            println!("  - {step}");
        }
        if let Some(link) = &check.link {
            println!("  see {link}");
        }
    }
    let overall = match report.overall {
        HealthStatus::Ok => "ok",
        HealthStatus::Warn => "warn: mail goes out; somebody should look",
        HealthStatus::Crit => "crit: sending is impaired",
    };
    println!("\n{overall}");
}
