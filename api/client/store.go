package client

import (
	"context"
	"iter"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// The messages of StoreService under the names that callers of this package use.
type (
	Info       = shinglev1.GetServerInfoResponse
	Usage      = shinglev1.Usage
	Zone       = shinglev1.Zone
	BlockGroup = shinglev1.BlockGroup
	Condition  = shinglev1.Condition
	Counters   = shinglev1.GetCountersResponse
)

// Info says which store and which run of the engine answers, and its limits.
func (c *Client) Info(ctx context.Context) (*Info, error) {
	return again(ctx, c, func() (*Info, error) {
		return c.store.GetServerInfo(ctx, &shinglev1.GetServerInfoRequest{})
	})
}

// Usage says how full the store is.
func (c *Client) Usage(ctx context.Context) (*Usage, error) {
	return again(ctx, c, func() (*Usage, error) {
		r, err := c.store.GetUsage(ctx, &shinglev1.GetUsageRequest{})
		return r.GetUsage(), err
	})
}

// Conditions says what is wrong now, the worst first. None is a healthy store.
func (c *Client) Conditions(ctx context.Context) ([]*Condition, error) {
	return again(ctx, c, func() ([]*Condition, error) {
		r, err := c.store.ListConditions(ctx, &shinglev1.ListConditionsRequest{})
		return r.GetConditions(), err
	})
}

// Counters gives exact counts of what this run of the engine has done.
func (c *Client) Counters(ctx context.Context) (*Counters, error) {
	return again(ctx, c, func() (*Counters, error) {
		return c.store.GetCounters(ctx, &shinglev1.GetCountersRequest{})
	})
}

// Zones walks the zones of the device by number, those in the given conditions or, with none
// given, all. After an error the walk is over.
func (c *Client) Zones(ctx context.Context, conditions ...shinglev1.ZoneCondition) iter.Seq2[*Zone, error] {
	return pages(ctx, c, func(token string) ([]*Zone, string, error) {
		r, err := c.store.ListZones(ctx, &shinglev1.ListZonesRequest{Conditions: conditions, PageToken: token})
		return r.GetZones(), r.GetNextPageToken(), err
	})
}

// BlockGroups walks the block groups by number, those in the given states or, with none
// given, all. After an error the walk is over.
func (c *Client) BlockGroups(ctx context.Context, states ...shinglev1.BlockGroupState) iter.Seq2[*BlockGroup, error] {
	return pages(ctx, c, func(token string) ([]*BlockGroup, string, error) {
		r, err := c.store.ListBlockGroups(ctx, &shinglev1.ListBlockGroupsRequest{States: states, PageToken: token})
		return r.GetBlockGroups(), r.GetNextPageToken(), err
	})
}
