//! The contracts, made from the routes: OpenAPI for HTTP, AsyncAPI for the bus.

pub mod asyncapi;
pub mod openapi;
