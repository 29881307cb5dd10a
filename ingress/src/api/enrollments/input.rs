//! The body of an enrollment request, and its validation.

use schemars::JsonSchema;
use schemas::Address;
use serde::Deserialize;
use uuid::Uuid;

use crate::pipeline::{
    Faults, Id,
    error::ApiError,
    types::{Email, Line},
};

/// Longest contact field, in characters.
const FIELD_MAX: usize = 200;

/// The body of an enrollment, without the tenant.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EnrollContact {
    #[schemars(required)]
    sequence_id: Option<Id>,
    #[schemars(with = "Email")]
    email: Option<String>,
    #[schemars(with = "Option<Line<FIELD_MAX>>")]
    first_name: Option<String>,
    #[schemars(with = "Option<Line<FIELD_MAX>>")]
    last_name: Option<String>,
    #[schemars(with = "Option<Line<FIELD_MAX>>")]
    title: Option<String>,
    #[schemars(with = "Option<Line<FIELD_MAX>>")]
    phone: Option<String>,
}

/// An enrollment to be.
#[derive(Debug)]
pub(crate) struct NewEnrollment {
    pub(crate) sequence_id: Uuid,
    pub(crate) address: Address,
    pub(crate) first_name: Option<String>,
    pub(crate) last_name: Option<String>,
    pub(crate) title: Option<String>,
    pub(crate) phone: Option<String>,
}

impl EnrollContact {
    /// Checks its form.
    ///
    /// # Errors
    /// 400 with every fault.
    pub(crate) fn validate(self) -> Result<NewEnrollment, ApiError> {
        let mut faults = Faults::default();
        let sequence_id = faults.required("sequence_id", self.sequence_id);
        let address = faults.required("email", self.email.as_deref()).and_then(|text| faults.address("email", text));
        for (path, text) in [
            ("first_name", &self.first_name),
            ("last_name", &self.last_name),
            ("title", &self.title),
            ("phone", &self.phone),
        ] {
            faults.one_line(path, text.as_deref().unwrap_or_default(), FIELD_MAX);
        }
        faults.finish()?;
        Ok(NewEnrollment {
            sequence_id: sequence_id.ok_or_else(ApiError::internal)?.0,
            address: address.ok_or_else(ApiError::internal)?,
            first_name: self.first_name,
            last_name: self.last_name,
            title: self.title,
            phone: self.phone,
        })
    }
}
